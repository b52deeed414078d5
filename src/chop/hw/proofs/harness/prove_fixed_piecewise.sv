// `fixed_piecewise`: on the line that the high bits choose, at the low bits, cast.
`default_nettype none

module prove_fixed_piecewise #(
    parameter int IN_WIDTH = 4,
    parameter int LOW_BITS = 2,
    parameter int BASE_WIDTH = 4,
    parameter int SLOPE_WIDTH = 3,
    parameter int LINE_FRAC = 3,
    parameter int OUT_WIDTH = 4,
    parameter int OUT_FRAC = 1,
    parameter bit OUT_SIGNED = 1'b1,
    parameter int ROUNDING = 0,
    parameter int OVERFLOW = 0,
    parameter logic [2**(IN_WIDTH-LOW_BITS)*(BASE_WIDTH+SLOPE_WIDTH)-1:0] TABLE = '0
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
  localparam int LINE = BASE_WIDTH + SLOPE_WIDTH;
  logic [LINE-1:0] line;
  logic signed [23:0] base, slope, exact;

  assign line  = TABLE[(data_in_0>>LOW_BITS)*LINE+:LINE];
  assign base  = 24'($signed(line[BASE_WIDTH-1:0]));
  assign slope = 24'($signed(line[LINE-1:BASE_WIDTH]));
  assign exact = base + slope * $signed(24'(data_in_0[LOW_BITS-1:0]));

  fixed_piecewise #(
      .DATA_IN_0_PRECISION_0 (IN_WIDTH),
      .LOW_BITS              (LOW_BITS),
      .BASE_WIDTH            (BASE_WIDTH),
      .SLOPE_WIDTH           (SLOPE_WIDTH),
      .LINE_FRAC             (LINE_FRAC),
      .DATA_OUT_0_PRECISION_0(OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1(OUT_FRAC),
      .DATA_OUT_0_IS_SIGNED  (OUT_SIGNED),
      .DATA_OUT_0_ROUNDING   (ROUNDING),
      .DATA_OUT_0_OVERFLOW   (OVERFLOW),
      .INIT_FILE             ("table.mem")
  ) dut (
      .*
  );

  spec_cast #(
      .IN_FRAC(LINE_FRAC), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC), .OUT_SIGNED(OUT_SIGNED),
      .ROUNDING(ROUNDING), .OVERFLOW(OVERFLOW)
  ) u_spec (
      .x(exact),
      .y(expected)
  );

  logic [$bits(data_out_0)-1:0] head;

  stream_laws #(.WIDTH(OUT_WIDTH), .SLOTS(8), .LATENCY(8), .GAP(9)) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid),
      .is_moving(1'b1),
      .push     (data_in_0_valid && data_in_0_ready),
      .expected (expected),
      .head     (head),
      .due      (head),
      .ends     (1'b1),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire
