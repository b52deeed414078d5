// Product of two streamed matrices, data_out_0 = cast(data_in_0 * data_in_1), folded over the columns
// of both. data_in_1 is kept in block RAM for all rows of data_in_0, the next one loads meanwhile.
// IN_FOLDS x OUT_FOLDS cycles per row of data_in_0. Matrices follow each other: heads, then tensors.
//
// data_in_1 comes row by row of (inner size, columns), or transposed, (columns, inner size); nothing is
// moved for that, its tiles are read in another order. An operand is fixed point, or MXINT with the
// beats of `fixed_linear`; MXINT comes transposed, so that the blocks of both operands are along the
// inner size. The accumulator is exact: ACC_WIDTH comes from the formats.
`default_nettype none

module fixed_matmul #(
    parameter int DATA_IN_0_PRECISION_0        = 8,  // width of an element, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1        = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED          = 1'b1,  // two's complement
    parameter int DATA_IN_0_EXPONENT_WIDTH     = 0,  // as in fixed_linear
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0  = 4,  // inner size
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_1  = 4,  // rows, 1 or more
    parameter int DATA_IN_0_PARALLELISM_DIM_0  = 2,  // lanes of the inner size; divides it
    parameter int DATA_IN_1_PRECISION_0        = 8,  // width of an element, bits, 1 or more
    parameter int DATA_IN_1_PRECISION_1        = 4,  // its fractional bits
    parameter bit DATA_IN_1_IS_SIGNED          = 1'b1,  // two's complement
    parameter int DATA_IN_1_EXPONENT_WIDTH     = 0,  // as in fixed_linear; 0 if not transposed
    parameter bit DATA_IN_1_IS_TRANSPOSED      = 1'b0,  // it comes as (columns, inner size)
    parameter int DATA_OUT_0_PRECISION_0       = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_TENSOR_SIZE_DIM_0 = 8,  // columns
    parameter int DATA_OUT_0_PARALLELISM_DIM_0 = 2,  // lanes of the columns; divides them
    parameter int ACC_WIDTH                    = 24,  // accumulator, bits: holds every partial sum
    parameter int OPERAND_REGISTERS            = 1,  // as in fixed_dot_product
    parameter int TREE_STEP                    = 1,  // as in fixed_dot_product
    // Bits of a beat of each operand; data_in_1 has the lanes of what its rows run along.
    parameter int DATA_IN_0_WIDTH =
        DATA_IN_0_PARALLELISM_DIM_0 * DATA_IN_0_PRECISION_0 + DATA_IN_0_EXPONENT_WIDTH,
    parameter int DATA_IN_1_WIDTH = DATA_IN_1_EXPONENT_WIDTH + DATA_IN_1_PRECISION_0
        * (DATA_IN_1_IS_TRANSPOSED ? DATA_IN_0_PARALLELISM_DIM_0 : DATA_OUT_0_PARALLELISM_DIM_0)
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
  if (DATA_IN_1_PRECISION_0 < 1 || DATA_IN_0_TENSOR_SIZE_DIM_1 < 1) begin : g_refuse_size
    $error("fixed_matmul: width and rows must be 1 or more, got %0d and %0d",
           DATA_IN_1_PRECISION_0, DATA_IN_0_TENSOR_SIZE_DIM_1);
  end
  if (DATA_IN_1_EXPONENT_WIDTH != 0 && !DATA_IN_1_IS_TRANSPOSED) begin : g_refuse_blocks
    $error("fixed_matmul: data_in_1 with exponents of %0d bits must be transposed",
           DATA_IN_1_EXPONENT_WIDTH);
  end
`endif

  localparam int IN_LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int OUT_LANES = DATA_OUT_0_PARALLELISM_DIM_0;
  localparam int WIDTH = DATA_IN_1_PRECISION_0;
  localparam int IN_FOLDS = DATA_IN_0_TENSOR_SIZE_DIM_0 / IN_LANES;
  localparam int OUT_FOLDS = DATA_OUT_0_TENSOR_SIZE_DIM_0 / OUT_LANES;
  localparam bit IS_TRANSPOSED = DATA_IN_1_IS_TRANSPOSED;

  localparam int WEIGHT_WIDTH = IN_LANES * WIDTH + DATA_IN_1_EXPONENT_WIDTH;

  logic [OUT_LANES*WEIGHT_WIDTH-1:0] tile, weight;
  logic tile_valid, tile_ready, unused_bias_ready;

  tile_buffer #(
      .DATA_WIDTH  (DATA_IN_1_WIDTH),
      .ROWS        (IS_TRANSPOSED ? DATA_OUT_0_TENSOR_SIZE_DIM_0 : DATA_IN_0_TENSOR_SIZE_DIM_0),
      .ROW_BEATS   (IS_TRANSPOSED ? IN_FOLDS : OUT_FOLDS),
      .GROUP       (IS_TRANSPOSED ? OUT_LANES : IN_LANES),
      .REPEATS     (DATA_IN_0_TENSOR_SIZE_DIM_1),
      .GROUPS_FIRST(!IS_TRANSPOSED)
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

  if (IS_TRANSPOSED) begin : g_transposed
    assign weight = tile;
  end else begin : g_plain
    for (genvar out = 0; out < OUT_LANES; out++) begin : g_out
      for (genvar lane = 0; lane < IN_LANES; lane++) begin : g_lane
        assign weight[(out*IN_LANES+lane)*WIDTH+:WIDTH] = tile[(lane*OUT_LANES+out)*WIDTH+:WIDTH];
      end
    end
  end

  fixed_linear #(
      .DATA_IN_0_PRECISION_0       (DATA_IN_0_PRECISION_0),
      .DATA_IN_0_PRECISION_1       (DATA_IN_0_PRECISION_1),
      .DATA_IN_0_IS_SIGNED         (DATA_IN_0_IS_SIGNED),
      .DATA_IN_0_EXPONENT_WIDTH    (DATA_IN_0_EXPONENT_WIDTH),
      .DATA_IN_0_TENSOR_SIZE_DIM_0 (DATA_IN_0_TENSOR_SIZE_DIM_0),
      .DATA_IN_0_PARALLELISM_DIM_0 (IN_LANES),
      .WEIGHT_PRECISION_0          (WIDTH),
      .WEIGHT_PRECISION_1          (DATA_IN_1_PRECISION_1),
      .WEIGHT_IS_SIGNED            (DATA_IN_1_IS_SIGNED),
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
      .DATA_OUT_0_PARALLELISM_DIM_0(OUT_LANES),
      .ACC_WIDTH                   (ACC_WIDTH),
      .OPERAND_REGISTERS           (OPERAND_REGISTERS),
      .TREE_STEP                   (TREE_STEP)
  ) u_fixed_linear (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (data_in_0),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .weight          (weight),
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
