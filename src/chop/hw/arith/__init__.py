"""Integer arithmetic of the hardware: fixed point, MXINT, constants as shifted additions."""
