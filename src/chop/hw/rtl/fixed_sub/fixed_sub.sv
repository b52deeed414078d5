// Difference data_in_0 - data_in_1, element by element.
// Latency 1 cycle, throughput 1 pair of beats per cycle.
`default_nettype none

module fixed_sub #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an element of data_in_0, bits
    parameter int DATA_IN_0_PRECISION_1       = 4,  // its fractional bits
    parameter int DATA_IN_1_PRECISION_0       = 8,  // width of an element of data_in_1, bits
    parameter int DATA_IN_1_PRECISION_1       = 4,  // its fractional bits
    parameter int DATA_OUT_0_PRECISION_0      = 8,  // width of an output element, bits, 2 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,  // its fractional bits
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1   // elements per beat of each stream, 1 or more
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_1_PRECISION_0-1:0] data_in_1,
    input  wire logic data_in_1_valid,
    output      logic data_in_1_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

  fixed_add #(
      .DATA_IN_0_PRECISION_0      (DATA_IN_0_PRECISION_0),
      .DATA_IN_0_PRECISION_1      (DATA_IN_0_PRECISION_1),
      .DATA_IN_1_PRECISION_0      (DATA_IN_1_PRECISION_0),
      .DATA_IN_1_PRECISION_1      (DATA_IN_1_PRECISION_1),
      .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_IN_0_PARALLELISM_DIM_0(DATA_IN_0_PARALLELISM_DIM_0),
      .SUBTRACT                   (1'b1)
  ) u_fixed_add (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (data_in_0),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .data_in_1       (data_in_1),
      .data_in_1_valid (data_in_1_valid),
      .data_in_1_ready (data_in_1_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
