// `fixed_relu`: the larger of x and 0.
`default_nettype none

module prove_fixed_relu #(
    parameter int IN_WIDTH = 4,
    parameter bit IN_SIGNED = 1'b1,
    parameter int OUT_WIDTH = IN_WIDTH
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [IN_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_out_0_valid;
  logic [OUT_WIDTH-1:0] data_out_0, expected;

  logic signed [23:0] x;
  assign x = 24'($signed({IN_SIGNED && data_in_0[IN_WIDTH-1], data_in_0}));
  logic is_lawful;
  assign expected = x > 0 ? OUT_WIDTH'(x) : '0;

  fixed_relu #(.DATA_IN_0_PRECISION_0(IN_WIDTH), .DATA_IN_0_IS_SIGNED(IN_SIGNED)) dut (.*);

  lawful_source #(.WIDTH(IN_WIDTH)) u_source (
      .clk(clk), .rst(rst), .data(data_in_0), .valid(data_in_0_valid), .ready(data_in_0_ready),
      .is_lawful(is_lawful)
  );

  pass_laws #(.WIDTH(OUT_WIDTH)) u_laws (
      .clk         (clk),
      .rst         (rst),
      .is_lawful   (is_lawful),
      .source_valid(data_in_0_valid),
      .source_ready(data_in_0_ready),
      .expected    (expected),
      .data        (data_out_0),
      .valid       (data_out_0_valid),
      .ready       (data_out_0_ready),
      .broken      (broken)
  );

endmodule

`default_nettype wire
