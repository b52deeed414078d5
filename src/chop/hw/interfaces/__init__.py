"""Standard interfaces around an emitted design: AXI4-Stream for data, AXI4-Lite for control."""
