// Rotary embedding: rotate pairs of elements (a, b) by an angle of the position.
//     a * cos - b * sin, then b * cos + a * sin, rounded to 16 bits.
// Latency 7 cycles from b to the first result. Throughput 1 element per cycle. It never stalls.
`default_nettype none

module pair_rotator #(
    parameter int FRAC = 14  // fractional bits of cos and sin
) (
    input  wire logic               clk,
    input  wire logic               rst,
    input  wire logic signed [15:0] element,
    input  wire logic               element_odd,
    input  wire logic               element_valid,
    input  wire logic signed [15:0] cos,            // of the pair, with b
    input  wire logic signed [15:0] sin,
    output      logic signed [15:0] rotated,
    output      logic               rotated_valid,
    output      logic               is_busy
);

  logic signed [15:0] first_q, second_1_q, cos_1_q, sin_1_q;
  logic signed [33:0] a_cos_q, a_sin_q, b_cos_q, b_sin_q, sum_q, second_q;
  logic pair_valid_q, products_valid_q, sum_valid_q, second_valid_q;

  always_ff @(posedge clk) begin
    if (element_valid && !element_odd) first_q <= element;
    second_1_q       <= element;
    cos_1_q          <= cos;
    sin_1_q          <= sin;
    pair_valid_q     <= element_valid && element_odd;
    a_cos_q          <= 34'(first_q) * 34'(cos_1_q);
    a_sin_q          <= 34'(first_q) * 34'(sin_1_q);
    b_cos_q          <= 34'(second_1_q) * 34'(cos_1_q);
    b_sin_q          <= 34'(second_1_q) * 34'(sin_1_q);
    products_valid_q <= pair_valid_q;
    sum_q            <= products_valid_q ? a_cos_q - b_sin_q : second_q;
    second_q         <= b_cos_q + a_sin_q;
    second_valid_q   <= products_valid_q;
    sum_valid_q      <= products_valid_q || second_valid_q;
    if (rst) begin
      pair_valid_q     <= 1'b0;
      products_valid_q <= 1'b0;
      second_valid_q   <= 1'b0;
      sum_valid_q      <= 1'b0;
    end
  end

  shift_cast #(
      .IN_WIDTH(34)
  ) u_cast (
      .clk           (clk),
      .rst           (rst),
      .data_in       (sum_q),
      .shift         (6'(FRAC)),
      .data_in_valid (sum_valid_q),
      .data_out      (rotated),
      .data_out_valid(rotated_valid)
  );

  assign is_busy = pair_valid_q || products_valid_q || sum_valid_q || rotated_valid;

endmodule

`default_nettype wire
