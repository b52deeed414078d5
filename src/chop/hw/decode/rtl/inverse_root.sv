// 1 / sqrt(u) = r * 2**(-18 - k), by a table of 256 entries and a Newton step; 0 for 0.
// Latency 18 cycles; u is stable meanwhile.
`default_nettype none

module inverse_root #(
    parameter ROOT_FILE = "root.mem"  // 256 words of 17 bits
) (
    input  wire logic        clk,
    input  wire logic [61:0] u,
    output      logic [19:0] r,
    output      logic [ 5:0] k
);

  logic [5:0] place;
  logic [17:0] mantissa_q;
  logic [16:0] entries[256];
  logic [16:0] entry_q, s_q;
  logic [33:0] square_q;
  logic [19:0] correction_q;
  logic signed [39:0] near_one;
  logic signed [38:0] product;
  logic is_zero_q;

  initial $readmemh(ROOT_FILE, entries);

  highest_bit #(
      .WIDTH(62)
  ) u_place (
      .clk    (clk),
      .data_in(u),
      .place  (place)
  );

  // mantissa: from 1 to 4, 16 fractional bits; the table has halves for 1 to 2 and 2 to 4
  always_ff @(posedge clk) begin
    is_zero_q    <= u == '0;
    mantissa_q   <= 18'({u, 16'd0} >> {place[5:1], 1'b0});
    entry_q      <= entries[{place[0], place[0] ? mantissa_q[16:10] : mantissa_q[15:9]}];
    s_q          <= entry_q;
    square_q     <= 34'(s_q) * 34'(s_q);
    correction_q <= 20'((38'h0c_0000_0000 - near_one[37:0]) >> 16);
    r            <= is_zero_q ? '0 : product[36:17];
    k            <= 6'(place[5:1]);
  end

  wide_product #(
      .A_WIDTH(21),
      .B_WIDTH(19)
  ) u_near_one (
      .clk    (clk),
      .a      ({1'b0, square_q[33:14]}),
      .b      ({1'b0, mantissa_q}),
      .product(near_one)
  );

  wide_product #(
      .A_WIDTH(21),
      .B_WIDTH(18)
  ) u_product (
      .clk    (clk),
      .a      ({1'b0, correction_q}),
      .b      ({1'b0, s_q}),
      .product(product)
  );

  wire logic unused_ok = &{1'b0, near_one[39:38], product[38:37], product[16:0], square_q[13:0]};

endmodule

`default_nettype wire
