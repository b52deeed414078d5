// The entry of each code.
wire logic [OUT_WIDTH-1:0] expected = TABLE[data_in_0*OUT_WIDTH+:OUT_WIDTH];
stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(8), .LATENCY(6), .GAP(7)) u_laws (.*);
