// Difference data_in_0 - ALPHA * data_in_1, element by element.
// Latency 1 cycle, throughput 1 pair of beats per cycle.
`default_nettype none

module fixed_sub #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an element of data_in_0, bits
    parameter int DATA_IN_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_IN_1_PRECISION_0       = 8,  // width of an element of data_in_1, bits
    parameter int DATA_IN_1_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_IN_1_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0      = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,  // as in fixed_cast
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1,  // elements per beat of each stream, 1 or more
    parameter longint ALPHA                   = 1,  // factor of data_in_1, in steps of 2**-ALPHA_FRAC
    parameter int ALPHA_FRAC                  = 0   // its fractional bits, 0 or more
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
      .DATA_IN_0_IS_SIGNED        (DATA_IN_0_IS_SIGNED),
      .DATA_IN_1_PRECISION_0      (DATA_IN_1_PRECISION_0),
      .DATA_IN_1_PRECISION_1      (DATA_IN_1_PRECISION_1),
      .DATA_IN_1_IS_SIGNED        (DATA_IN_1_IS_SIGNED),
      .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(DATA_IN_0_PARALLELISM_DIM_0),
      .ALPHA                      (ALPHA),
      .ALPHA_FRAC                 (ALPHA_FRAC),
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
