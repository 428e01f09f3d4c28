"""A case study of one bug: a loader lends views of a buffer it reuses, and someone keeps one.

loaders     who yields: `borrowed` (the bug), `cloned` (the fix)
consumers   who keeps: the incident's loader in three versions
aliasing    byte spans and overlaps
trace       what was yielded, where, and how long it was held
checkpoint  safetensors layout, FP8 blocks
model       the tiny GLM-MoE-DSA model
reproduce   the incident from end to end
plots       pictures
"""

from casestudy.aliasing import byte_span, label, overlaps
from casestudy.consumers import collect
from casestudy.errors import CaseStudyError
from casestudy.loaders import LOADERS, borrowed, cloned, runai_safetensors_weights_iterator
from casestudy.trace import record

__all__ = [
    "LOADERS",
    "CaseStudyError",
    "borrowed",
    "byte_span",
    "cloned",
    "collect",
    "label",
    "overlaps",
    "record",
    "runai_safetensors_weights_iterator",
]
