// The line of a code's high bits, at its low bits, exactly and then cast.
localparam int LINE = BASE_WIDTH + SLOPE_WIDTH;
logic [LINE-1:0] line;
logic signed [23:0] base, slope, exact;
logic [OUT_WIDTH-1:0] expected;

assign line  = TABLE[(data_in_0>>LOW_BITS)*LINE+:LINE];
assign base  = 24'($signed(line[BASE_WIDTH-1:0]));
assign slope = 24'($signed(line[LINE-1:BASE_WIDTH]));
assign exact = base + slope * $signed(24'(data_in_0[LOW_BITS-1:0]));

spec_cast #(.IN_FRAC(LINE_FRAC), `OUT_FORMAT) u_spec (.x(exact), .y(expected));
stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(8), .LATENCY(8), .GAP(9)) u_laws (.*);
