// weight * x + bias, exactly and then cast. The three streams are taken together or not at all.
logic is_reset_q = 1'b0;
logic [OUT_WIDTH-1:0] expected;
logic [2:0] laws;
wire logic is_fed = data_in_0_valid && weight_valid && bias_valid;
wire logic [2:0] each = {
  bias_valid && bias_ready, weight_valid && weight_ready, data_in_0_valid && data_in_0_ready
};
wire logic push = &each;
assign broken = laws | {2'b0, is_reset_q && !rst && each != '0 && !push};
always_ff @(posedge clk) is_reset_q <= is_reset_q || rst;

// In steps of 2**-(IN_FRAC + W_FRAC + B_FRAC).
logic signed [23:0] x, w, b, exact;
assign x     = 24'($signed({IN_SIGNED && data_in_0[IN_WIDTH-1], data_in_0}));
assign w     = 24'($signed(weight));
assign b     = 24'($signed(bias));
assign exact = x * w * 24'(2 ** B_FRAC) + b * 24'(2 ** (IN_FRAC + W_FRAC));

spec_cast #(.IN_FRAC(IN_FRAC + W_FRAC + B_FRAC), `OUT_FORMAT) u_spec (.x(exact), .y(expected));
stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(4), .LATENCY(3), .GAP(4)) u_laws (.*, .broken(laws));
