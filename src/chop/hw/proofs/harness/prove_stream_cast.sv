// `stream_cast` and with it `fixed_cast`: every number, cast by the definition.
`default_nettype none

module prove_stream_cast #(
    parameter int IN_WIDTH = 5,
    parameter int IN_FRAC = 3,
    parameter bit IN_SIGNED = 1'b1,
    parameter int OUT_WIDTH = 4,
    parameter int OUT_FRAC = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0
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

  stream_cast #(
      .DATA_IN_0_PRECISION_0 (IN_WIDTH),
      .DATA_IN_0_PRECISION_1 (IN_FRAC),
      .DATA_IN_0_IS_SIGNED   (IN_SIGNED),
      .DATA_OUT_0_PRECISION_0(OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1(OUT_FRAC),
      .DATA_OUT_0_IS_SIGNED  (OUT_SIGNED),
      .DATA_OUT_0_ROUNDING   (ROUNDING),
      .DATA_OUT_0_OVERFLOW   (OVERFLOW)
  ) dut (
      .*
  );

  spec_cast #(
      .IN_FRAC(IN_FRAC), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC), .OUT_SIGNED(OUT_SIGNED),
      .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
  ) u_spec (
      .x(x),
      .y(expected)
  );

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
