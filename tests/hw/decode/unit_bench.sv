// Modules of the decode engine side by side, so that one program tests them all.
`default_nettype none

module unit_bench (
    input  wire logic               clk,
    input  wire logic               rst,
    input  wire logic signed [55:0] wide,
    input  wire logic        [ 5:0] shift,
    input  wire logic signed [15:0] code,
    input  wire logic               code_odd,
    input  wire logic        [61:0] u,
    input  wire logic               valid,
    output      logic signed [15:0] cast,
    output      logic               cast_valid,
    output      logic signed [ 7:0] mantissa,
    output      logic        [ 3:0] exponent,
    output      logic               mantissa_valid,
    output      logic signed [15:0] rotated,
    output      logic               rotated_valid,
    output      logic signed [63:0] product,
    output      logic               product_valid,
    output      logic        [19:0] root,
    output      logic        [ 5:0] root_place
);

  logic unused_collector, unused_rotator;
  logic [2:0] valid_q;

  shift_cast u_cast (
      .clk(clk), .rst(rst), .data_in(wide), .shift(shift), .data_in_valid(valid),
      .data_out(cast), .data_out_valid(cast_valid)
  );

  block_collector #(.BLOCK(8)) u_collector (
      .clk(clk), .rst(rst), .element(code), .element_valid(valid), .is_narrow(1'b0),
      .mantissa(mantissa), .exponent(exponent), .mantissa_valid(mantissa_valid), .is_busy(unused_collector)
  );

  pair_rotator u_rotator (
      .clk(clk), .rst(rst), .element(code), .element_odd(code_odd), .element_valid(valid),
      .cos(wide[15:0]), .sin(wide[31:16]), .rotated(rotated), .rotated_valid(rotated_valid),
      .is_busy(unused_rotator)
  );

  wide_product #(.A_WIDTH(40), .B_WIDTH(24)) u_product (
      .clk(clk), .a(wide[39:0]), .b({code, wide[47:40]}), .product(product)
  );

  assign product_valid = valid_q[2];

  always_ff @(posedge clk) valid_q <= rst ? '0 : {valid_q[1:0], valid};

  inverse_root #(.ROOT_FILE("root.mem")) u_root (.clk(clk), .u(u), .r(root), .k(root_place));

  wire logic unused_ok = &{1'b0, unused_collector, unused_rotator};

endmodule

`default_nettype wire
