// 1 / sqrt(u) = r * 2**(-18 - k), by a table of 256 entries and a Newton step; 0 for 0.
// Latency 9 cycles; u is stable meanwhile.
`default_nettype none

module inverse_root #(
    parameter ROOT_FILE = "root.mem"  // 256 words of 17 bits
) (
    input  wire logic        clk,
    input  wire logic [61:0] u,
    output      logic [19:0] r,
    output      logic [ 5:0] k
);

  logic [5:0] place, place_q;
  logic [2:0] upper_q;
  logic [61:0] rest;
  logic [7:0] part, part_q;
  logic [17:0] mantissa_q;
  logic [16:0] entries[256];
  logic [16:0] s_q;
  logic [19:0] square_q, correction_q;
  logic [37:0] near_one_q;
  logic [36:0] product;
  logic is_zero_q;

  initial $readmemh(ROOT_FILE, entries);

  always_comb begin
    rest = u;
    part = part_q;
    for (int level = 5; level >= 3; level--) begin  // the highest bit, by halves
      place[level] = (rest >> (1 << level)) != '0;
      if (place[level]) rest = rest >> (1 << level);
    end
    for (int level = 2; level >= 0; level--) begin  // one cycle later
      place[level] = (part >> (1 << level)) != '0;
      if (place[level]) part = part >> (1 << level);
    end
  end

  // mantissa: from 1 to 4, 16 fractional bits; the table has halves for 1 to 2 and 2 to 4
  always_ff @(posedge clk) begin
    upper_q      <= place[5:3];
    part_q       <= rest[7:0];
    place_q      <= {upper_q, place[2:0]};
    is_zero_q    <= u == '0;
    mantissa_q   <= 18'({u, 16'd0} >> {place_q[5:1], 1'b0});
    s_q          <= entries[{place_q[0], place_q[0] ? mantissa_q[16:10] : mantissa_q[15:9]}];
    square_q     <= 20'((34'(s_q) * 34'(s_q)) >> 14);
    near_one_q   <= 38'(mantissa_q) * 38'(square_q);
    correction_q <= 20'((38'h0c_0000_0000 - near_one_q) >> 16);
    r            <= is_zero_q ? '0 : product[36:17];
  end

  assign product = 37'(s_q) * 37'(correction_q);
  assign k       = 6'(place_q[5:1]);

  wire logic unused_ok = &{1'b0, product[16:0]};

endmodule

`default_nettype wire
