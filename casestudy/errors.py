"""The one error family of the package: a person's mistake, told in a sentence."""


class CaseStudyError(Exception):
    """Something the reader can mend; the message names what is wrong and what to do."""


class CheckpointError(CaseStudyError):
    """A checkpoint file or folder is missing, damaged or incomplete."""


class StreamError(CaseStudyError):
    """The streamer cannot do what was asked of it."""
