"""The MASE IR: a torch.fx graph whose nodes carry typed metadata."""

from chop.compat.old_names import lazy_names

__getattr__ = lazy_names(__name__)
