"""The MASE IR: a torch.fx graph whose nodes carry typed metadata."""

from chop.ir.moved import find_moved_modules
from chop.old_names import lazy_names

__getattr__ = lazy_names(__name__)
find_moved_modules()
