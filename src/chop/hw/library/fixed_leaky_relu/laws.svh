// x, or slope * x where x is negative, exactly and then cast. The slope is a constant, or comes from a
// stream of its own that may stall.
logic [OUT_WIDTH-1:0] expected;
logic is_reset_q = 1'b0;
logic [2:0] laws;
wire logic is_fed = data_in_0_valid && (weight_valid || !HAS_WEIGHT);
wire logic is_weight_taken = weight_valid && weight_ready;

// In steps of 2**-(IN_FRAC + NEGATIVE_SLOPE_FRAC).
logic signed [23:0] x, slope, exact;
assign x     = 24'($signed({IN_SIGNED && data_in_0[IN_WIDTH-1], data_in_0}));
assign slope = HAS_WEIGHT ? 24'($signed(weight)) : 24'(NEGATIVE_SLOPE);
assign exact = x < 0 ? x * slope : x * 24'(2 ** NEGATIVE_SLOPE_FRAC);

// An element and its slope are taken together.
assign broken = laws | {2'b0, HAS_WEIGHT && is_reset_q && !rst && push != is_weight_taken};
always_ff @(posedge clk) is_reset_q <= is_reset_q || rst;

spec_cast #(.IN_FRAC(IN_FRAC + NEGATIVE_SLOPE_FRAC), `OUT_FORMAT) u_spec (.x(exact), .y(expected));
stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(8), .LATENCY(6), .GAP(7)) u_laws (.*, .broken(laws));
