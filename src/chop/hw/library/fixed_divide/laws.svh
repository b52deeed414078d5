// A number over a constant, or over `divisor`, rounded by the definition.
logic [DIVISOR:IS_CHOSEN?1:DIVISOR] is_wrong;

// The dividend of LATENCY enabled cycles ago, if there were as many.
localparam int LATENCY = HAS_PARTS ? 3 : 2;
localparam int BY = $clog2(DIVISOR + 1);
logic [LATENCY-1:0][IN_WIDTH-1:0] given_q;
logic [LATENCY-1:0][BY-1:0] by_q;
logic [LATENCY-1:0] is_given_q = '0;

always_ff @(posedge clk) begin
  if (enable) begin
    given_q    <= (LATENCY * IN_WIDTH)'({given_q, data_in_0});
    by_q       <= (LATENCY * BY)'({by_q, divisor});
    is_given_q <= LATENCY'({is_given_q, 1'b1});
  end
  if (rst) is_given_q <= '0;
end

for (genvar by = IS_CHOSEN ? 1 : DIVISOR; by <= DIVISOR; by++) begin : g_by
  logic [OUT_WIDTH-1:0] expected;
  spec_cast #(.WORK(9), .IN_FRAC(IN_FRAC), .DIVISOR(by), `OUT_FORMAT) u_spec (
      .x(9'($signed(given_q[LATENCY-1]))), .y(expected)
  );
  assign is_wrong[by] = data_out_0 != expected && (!IS_CHOSEN || 32'(by_q[LATENCY-1]) == by);
end

assign broken = {2'b00, |is_wrong && is_given_q[LATENCY-1] && !rst};  // no stream: no other laws
