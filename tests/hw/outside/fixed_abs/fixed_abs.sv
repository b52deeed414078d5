// Absolute value of every lane.
// Latency 1 cycle, throughput 1 beat per cycle.
`default_nettype none

module fixed_abs #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an input element, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0      = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,  // as in fixed_cast
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1   // elements per beat, 1 or more
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int WIDTH = DATA_IN_0_PRECISION_0;
  localparam int WIDE = WIDTH + 1;  // the lowest value has no positive counterpart

  logic [LANES*WIDE-1:0] magnitude;
  logic [LANES*DATA_OUT_0_PRECISION_0-1:0] result;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [WIDE-1:0] x;
    logic sign;
    assign sign = DATA_IN_0_IS_SIGNED && data_in_0[lane*WIDTH+WIDTH-1];
    assign x = {sign, data_in_0[lane*WIDTH+:WIDTH]};
    assign magnitude[lane*WIDE+:WIDE] = sign ? -x : x;
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (WIDE),
      .DATA_IN_0_PRECISION_1      (DATA_IN_0_PRECISION_1),
      .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_cast (
      .data_in_0 (magnitude),
      .data_out_0(result)
  );

  skid_buffer #(
      .DATA_WIDTH(LANES * DATA_OUT_0_PRECISION_0)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (result),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
