"""The MASE IR: a torch.fx graph whose nodes carry typed metadata."""
