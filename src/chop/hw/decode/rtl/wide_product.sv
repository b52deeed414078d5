// Product of two signed numbers of any width, from products that fit one multiplier of an FPGA.
//
// Each operand is split into pieces of PIECE bits; the highest piece has the sign.
// Latency 3 cycles: products of pieces, sums over the pieces of `a`, sum over the pieces of `b`.
// Throughput 1 product per cycle. It never stalls.
`default_nettype none

module wide_product #(
    parameter int A_WIDTH = 24,  // bits of a, 2 or more
    parameter int B_WIDTH = 24,  // bits of b, 2 or more
    parameter int PIECE   = 17   // bits of a piece; a multiplier has one bit more
) (
    input  wire logic                              clk,
    input  wire logic signed [        A_WIDTH-1:0] a,
    input  wire logic signed [        B_WIDTH-1:0] b,
    output      logic signed [A_WIDTH+B_WIDTH-1:0] product
);

  localparam int WIDTH = A_WIDTH + B_WIDTH;
  localparam int A_PIECES = (A_WIDTH - 1 + PIECE - 1) / PIECE;
  localparam int B_PIECES = (B_WIDTH - 1 + PIECE - 1) / PIECE;
  localparam int PART = 2 * (PIECE + 1);  // bits of a product of pieces

  logic signed [A_PIECES*PIECE:0] a_wide;
  logic signed [B_PIECES*PIECE:0] b_wide;
  logic signed [PART-1:0] parts_1_q[A_PIECES*B_PIECES];
  logic signed [WIDTH-1:0] row_sums[B_PIECES];
  logic signed [WIDTH-1:0] rows_2_q[B_PIECES];
  logic signed [WIDTH-1:0] total;

  assign a_wide = (A_PIECES * PIECE + 1)'(a);
  assign b_wide = (B_PIECES * PIECE + 1)'(b);

  for (genvar j = 0; j < B_PIECES; j++) begin : g_row
    for (genvar i = 0; i < A_PIECES; i++) begin : g_part
      logic signed [PIECE:0] a_piece, b_piece;
      assign a_piece = {i == A_PIECES - 1 && a_wide[A_PIECES*PIECE], a_wide[i*PIECE+:PIECE]};
      assign b_piece = {j == B_PIECES - 1 && b_wide[B_PIECES*PIECE], b_wide[j*PIECE+:PIECE]};
      always_ff @(posedge clk) parts_1_q[j*A_PIECES+i] <= PART'(a_piece) * PART'(b_piece);
    end
  end

  always_comb begin
    total = '0;
    for (int j = 0; j < B_PIECES; j++) begin
      row_sums[j] = '0;
      for (int i = 0; i < A_PIECES; i++) begin
        row_sums[j] = row_sums[j] + (WIDTH'(parts_1_q[j*A_PIECES+i]) <<< (i * PIECE));
      end
      total = total + (rows_2_q[j] <<< (j * PIECE));
    end
  end

  always_ff @(posedge clk) begin
    rows_2_q <= row_sums;
    product  <= total;
  end

endmodule

`default_nettype wire
