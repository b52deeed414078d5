// Product of two streamed MXINT matrices, data_out_0 = cast(data_in_0 * data_in_1), folded over the
// columns of both. data_in_1 comes transposed, (columns, inner size), so that the blocks of both lie
// along the inner size; it is kept in block RAM for all rows of data_in_0, the next one loads
// meanwhile. IN_FOLDS x OUT_FOLDS cycles per row of data_in_0. Matrices follow each other.
//
// Beats are those of `mxint_linear`. The accumulator is exact: ACC_WIDTH comes from the formats.
`default_nettype none

module mxint_matmul #(
    parameter int DATA_IN_0_PRECISION_0        = 8,  // width of a mantissa, bits, 2 or more
    parameter int DATA_IN_0_PRECISION_1        = 6,  // its fractional bits at exponent 0
    parameter int DATA_IN_0_EXPONENT_WIDTH     = 2,  // width of an exponent, bits, 1 or more
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0  = 4,  // inner size
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_1  = 4,  // rows, 1 or more
    parameter int DATA_IN_0_PARALLELISM_DIM_0  = 2,  // lanes of the inner size; divides it
    parameter int DATA_IN_1_PRECISION_0        = 8,  // width of a mantissa, bits, 2 or more
    parameter int DATA_IN_1_PRECISION_1        = 6,  // its fractional bits at exponent 0
    parameter int DATA_IN_1_EXPONENT_WIDTH     = 2,  // width of an exponent, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_0       = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_TENSOR_SIZE_DIM_0 = 8,  // columns
    parameter int DATA_OUT_0_PARALLELISM_DIM_0 = 2,  // lanes of the columns; divides them
    parameter int ACC_WIDTH                    = 30,  // accumulator, bits: holds every partial sum
    // Bits of a beat of each operand.
    parameter int DATA_IN_0_WIDTH =
        DATA_IN_0_PARALLELISM_DIM_0 * DATA_IN_0_PRECISION_0 + DATA_IN_0_EXPONENT_WIDTH,
    parameter int DATA_IN_1_WIDTH =
        DATA_IN_0_PARALLELISM_DIM_0 * DATA_IN_1_PRECISION_0 + DATA_IN_1_EXPONENT_WIDTH
) (
    input  wire logic clk,
    input  wire logic rst,

    input  wire logic [DATA_IN_0_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,

    input  wire logic [DATA_IN_1_WIDTH-1:0] data_in_1,
    input  wire logic data_in_1_valid,
    output      logic data_in_1_ready,

    output      logic [DATA_OUT_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_1_PRECISION_0 < 2 || DATA_IN_0_TENSOR_SIZE_DIM_1 < 1) begin : g_refuse_size
    $error("mxint_matmul: width and rows must be 2 and 1 or more, got %0d and %0d",
           DATA_IN_1_PRECISION_0, DATA_IN_0_TENSOR_SIZE_DIM_1);
  end
`endif

  localparam int IN_FOLDS = DATA_IN_0_TENSOR_SIZE_DIM_0 / DATA_IN_0_PARALLELISM_DIM_0;

  logic [DATA_OUT_0_PARALLELISM_DIM_0*DATA_IN_1_WIDTH-1:0] tile;
  logic tile_valid, tile_ready, unused_bias_ready;

  tile_buffer #(
      .DATA_WIDTH(DATA_IN_1_WIDTH),
      .ROWS      (DATA_OUT_0_TENSOR_SIZE_DIM_0),
      .ROW_BEATS (IN_FOLDS),
      .GROUP     (DATA_OUT_0_PARALLELISM_DIM_0),
      .REPEATS   (DATA_IN_0_TENSOR_SIZE_DIM_1)
  ) u_tile_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (data_in_1),
      .data_in_0_valid (data_in_1_valid),
      .data_in_0_ready (data_in_1_ready),
      .data_out_0      (tile),
      .data_out_0_valid(tile_valid),
      .data_out_0_ready(tile_ready)
  );

  mxint_linear #(
      .DATA_IN_0_PRECISION_0       (DATA_IN_0_PRECISION_0),
      .DATA_IN_0_PRECISION_1       (DATA_IN_0_PRECISION_1),
      .DATA_IN_0_EXPONENT_WIDTH    (DATA_IN_0_EXPONENT_WIDTH),
      .DATA_IN_0_TENSOR_SIZE_DIM_0 (DATA_IN_0_TENSOR_SIZE_DIM_0),
      .DATA_IN_0_PARALLELISM_DIM_0 (DATA_IN_0_PARALLELISM_DIM_0),
      .WEIGHT_PRECISION_0          (DATA_IN_1_PRECISION_0),
      .WEIGHT_PRECISION_1          (DATA_IN_1_PRECISION_1),
      .WEIGHT_EXPONENT_WIDTH       (DATA_IN_1_EXPONENT_WIDTH),
      .HAS_BIAS                    (1'b0),
      .BIAS_PRECISION_0            (1),
      .BIAS_PRECISION_1            (0),
      .DATA_OUT_0_PRECISION_0      (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1      (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED        (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING         (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW         (DATA_OUT_0_OVERFLOW),
      .DATA_OUT_0_TENSOR_SIZE_DIM_0(DATA_OUT_0_TENSOR_SIZE_DIM_0),
      .DATA_OUT_0_PARALLELISM_DIM_0(DATA_OUT_0_PARALLELISM_DIM_0),
      .ACC_WIDTH                   (ACC_WIDTH)
  ) u_mxint_linear (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (data_in_0),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .weight          (tile),
      .weight_valid    (tile_valid),
      .weight_ready    (tile_ready),
      .bias            ('0),
      .bias_valid      (1'b0),
      .bias_ready      (unused_bias_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

  wire logic unused_ok = &{1'b0, unused_bias_ready};

endmodule

`default_nettype wire
