"""Pictures of plain data, one a file; each knows its title, alt text and table.

stream_map        who lies where, and for how long: address x iterator step
storage_map       where held tensors lie, before and after, to one scale
byte_view         the same bytes at three moments, and what they mean
checkpoint_strip  a file in the order of its bytes, its pairs, the streamer's requests
damage            which parameters are wrong and by how much, and what it costs
text_comparison   what models wrote
"""

from casestudy.plots.byte_view import byte_grid, byte_view
from casestudy.plots.checkpoint_strip import checkpoint_strip
from casestudy.plots.continuations import Continuations
from casestudy.plots.damage import damage
from casestudy.plots.picture import Picture
from casestudy.plots.storage_map import storage_map
from casestudy.plots.stream_map import stream_map
from casestudy.plots.text_comparison import text_comparison

__all__ = [
    "Continuations",
    "Picture",
    "byte_grid",
    "byte_view",
    "checkpoint_strip",
    "damage",
    "storage_map",
    "stream_map",
    "text_comparison",
]
