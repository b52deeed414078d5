// SiLU(gate) * up: even elements are gates, odd ones belong to the gate before.
// SiLU is a straight line for each value of the high bits of a gate: base + slope * low bits.
// Latency 15 cycles from `up`. Throughput 1 element per cycle. It never stalls.
`default_nettype none

module silu_gate #(
    parameter int LOW_BITS    = 7,            // low bits of a gate, 1 to 12
    parameter int BASE_WIDTH  = 36,           // bits of a base, signed
    parameter int SLOPE_WIDTH = 20,           // bits of a slope, signed
    parameter     LINE_FILE   = "silu.mem"    // {slope, base} for each line
) (
    input  wire logic               clk,
    input  wire logic               rst,
    input  wire logic signed [15:0] element,
    input  wire logic               element_odd,
    input  wire logic               element_valid,
    input  wire logic        [ 5:0] shift,          // of the product
    output      logic signed [15:0] gated,
    output      logic               gated_valid,
    output      logic               is_busy
);

  localparam int LINES = 1 << (16 - LOW_BITS);
  localparam int EXACT = (BASE_WIDTH > SLOPE_WIDTH + LOW_BITS ? BASE_WIDTH
      : SLOPE_WIDTH + LOW_BITS) + 2;
  localparam int DELAY = 10;  // from a gate to its SiLU

  logic [SLOPE_WIDTH+BASE_WIDTH-1:0] lines[LINES];
  logic [SLOPE_WIDTH+BASE_WIDTH-1:0] line_1_q, line_2_q;
  logic [LOW_BITS-1:0] low_1_q, low_2_q;
  logic signed [BASE_WIDTH-1:0] bases_q[3];
  logic signed [SLOPE_WIDTH+LOW_BITS:0] rise;
  logic signed [EXACT-1:0] exact_q;
  logic signed [15:0] silu, silu_q;
  logic signed [31:0] product_q;
  logic signed [15:0] elements_q[DELAY];
  logic [DELAY-1:0] odd_q, valid_q;
  logic product_valid_q, unused_valid;

  initial $readmemh(LINE_FILE, lines);

  always_ff @(posedge clk) begin
    line_1_q <= lines[element[15:LOW_BITS]];
    low_1_q  <= element[LOW_BITS-1:0];
    line_2_q <= line_1_q;
    low_2_q  <= low_1_q;
    bases_q[0]    <= $signed(line_2_q[BASE_WIDTH-1:0]);
    for (int i = 1; i < 3; i++) bases_q[i] <= bases_q[i-1];
    exact_q       <= EXACT'(rise) + EXACT'(bases_q[2]);
    elements_q[0] <= element;
    for (int i = 1; i < DELAY; i++) elements_q[i] <= elements_q[i-1];
    odd_q   <= {odd_q[DELAY-2:0], element_odd};
    valid_q <= {valid_q[DELAY-2:0], element_valid};
    if (valid_q[DELAY-1] && !odd_q[DELAY-1]) silu_q <= silu;
    product_q       <= 32'(silu_q) * 32'(elements_q[DELAY-1]);
    product_valid_q <= valid_q[DELAY-1] && odd_q[DELAY-1];
    if (rst) begin
      valid_q         <= '0;
      product_valid_q <= 1'b0;
    end
  end

  wide_product #(
      .A_WIDTH(SLOPE_WIDTH),
      .B_WIDTH(LOW_BITS + 1)
  ) u_rise (
      .clk    (clk),
      .a      ($signed(line_2_q[BASE_WIDTH+:SLOPE_WIDTH])),
      .b      ($signed({1'b0, low_2_q})),
      .product(rise)
  );

  shift_cast #(
      .IN_WIDTH(EXACT)
  ) u_silu (
      .clk           (clk),
      .rst           (rst),
      .data_in       (exact_q),
      .shift         (6'(LOW_BITS + 4)),
      .data_in_valid (valid_q[DELAY-5]),
      .data_out      (silu),
      .data_out_valid(unused_valid)
  );

  shift_cast #(
      .IN_WIDTH(32)
  ) u_cast (
      .clk           (clk),
      .rst           (rst),
      .data_in       (product_q),
      .shift         (shift),
      .data_in_valid (product_valid_q),
      .data_out      (gated),
      .data_out_valid(gated_valid)
  );

  assign is_busy = valid_q != '0 || product_valid_q || gated_valid;

  wire logic unused_ok = &{1'b0, unused_valid};

endmodule

`default_nettype wire
