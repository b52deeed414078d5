"""The program `mase`: parse the command line, call, print."""
