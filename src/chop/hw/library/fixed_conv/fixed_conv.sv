// Convolution: a line buffer that feeds a folded linear layer, pixel by pixel.
// Images stream by row, column, channel; a sequence is an image of one row.
// Cycles per output pixel: kernel area x input channels / input lanes x output channels / output
// lanes.
// Weights are those of fixed_linear for a vector ordered by kernel row, kernel column, channel.
`default_nettype none

module fixed_conv #(
    parameter int DATA_IN_0_PRECISION_0        = 8,  // width of an input element, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1        = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED          = 1'b1,  // two's complement
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0  = 2,  // channels
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_1  = 4,  // columns of the image
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_2  = 1,  // rows of the image
    parameter int DATA_IN_0_PARALLELISM_DIM_0  = 1,  // channels per beat; divides the channels
    parameter int KERNEL_SIZE_DIM_0            = 3,  // columns of the window
    parameter int KERNEL_SIZE_DIM_1            = 1,  // rows of the window
    parameter int STRIDE_DIM_0                 = 1,  // columns between windows
    parameter int STRIDE_DIM_1                 = 1,  // rows between windows
    parameter int PADDING_DIM_0                = 1,  // columns added left and right
    parameter int PADDING_DIM_1                = 0,  // rows added above and below
    parameter int WEIGHT_PRECISION_0           = 8,  // width of a weight, bits, 1 or more
    parameter int WEIGHT_PRECISION_1           = 4,  // its fractional bits
    parameter bit WEIGHT_IS_SIGNED             = 1'b1,  // two's complement
    parameter bit HAS_BIAS                     = 1'b1,  // 0: the bias stream is not used
    parameter int BIAS_PRECISION_0             = 8,  // width of a bias, bits, 1 or more
    parameter int BIAS_PRECISION_1             = 4,  // its fractional bits
    parameter bit BIAS_IS_SIGNED               = 1'b1,  // two's complement
    parameter int DATA_OUT_0_PRECISION_0       = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW          = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_TENSOR_SIZE_DIM_0 = 4,  // output channels
    parameter int DATA_OUT_0_PARALLELISM_DIM_0 = 1,  // output channels per beat; divides them
    parameter int ACC_WIDTH                    = 24, // accumulator, bits: holds every partial sum
    parameter int OPERAND_REGISTERS            = 1,  // as in fixed_dot_product
    parameter int TREE_STEP                    = 1   // as in fixed_dot_product
) (
    input  wire logic clk,
    input  wire logic rst,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,

    input  wire logic [DATA_OUT_0_PARALLELISM_DIM_0*DATA_IN_0_PARALLELISM_DIM_0
        *WEIGHT_PRECISION_0-1:0] weight,
    input  wire logic weight_valid,
    output      logic weight_ready,

    input  wire logic [DATA_OUT_0_PARALLELISM_DIM_0*BIAS_PRECISION_0-1:0] bias,
    input  wire logic bias_valid,
    output      logic bias_ready,

    output      logic [DATA_OUT_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || WEIGHT_PRECISION_0 < 1 || BIAS_PRECISION_0 < 1
      || DATA_OUT_0_PRECISION_0 < 1) begin : g_refuse_size
    $error("fixed_conv: widths must be 1 or more, got %0d, %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, WEIGHT_PRECISION_0, BIAS_PRECISION_0, DATA_OUT_0_PRECISION_0);
  end
  if (DATA_IN_0_PARALLELISM_DIM_0 < 1
      || DATA_IN_0_TENSOR_SIZE_DIM_0 % DATA_IN_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_in
    $error("fixed_conv: the parallelism must divide the channels, got %0d of %0d",
           DATA_IN_0_PARALLELISM_DIM_0, DATA_IN_0_TENSOR_SIZE_DIM_0);
  end
  if (DATA_OUT_0_PARALLELISM_DIM_0 < 1
      || DATA_OUT_0_TENSOR_SIZE_DIM_0 % DATA_OUT_0_PARALLELISM_DIM_0 != 0) begin : g_refuse_out
    $error("fixed_conv: the parallelism must divide the channels, got %0d of %0d",
           DATA_OUT_0_PARALLELISM_DIM_0, DATA_OUT_0_TENSOR_SIZE_DIM_0);
  end
`endif

  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int WINDOW_SIZE = KERNEL_SIZE_DIM_0 * KERNEL_SIZE_DIM_1 * DATA_IN_0_TENSOR_SIZE_DIM_0;

  logic [LANES*IN_WIDTH-1:0] window;
  logic window_valid, window_ready;

  sliding_window #(
      .DATA_WIDTH                 (LANES * IN_WIDTH),
      .DATA_IN_0_TENSOR_SIZE_DIM_0(DATA_IN_0_TENSOR_SIZE_DIM_0 / LANES),
      .DATA_IN_0_TENSOR_SIZE_DIM_1(DATA_IN_0_TENSOR_SIZE_DIM_1),
      .DATA_IN_0_TENSOR_SIZE_DIM_2(DATA_IN_0_TENSOR_SIZE_DIM_2),
      .KERNEL_SIZE_DIM_0          (KERNEL_SIZE_DIM_0),
      .KERNEL_SIZE_DIM_1          (KERNEL_SIZE_DIM_1),
      .STRIDE_DIM_0               (STRIDE_DIM_0),
      .STRIDE_DIM_1               (STRIDE_DIM_1),
      .PADDING_DIM_0              (PADDING_DIM_0),
      .PADDING_DIM_1              (PADDING_DIM_1),
      .PAD                        ('0)
  ) u_sliding_window (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (data_in_0),
      .data_in_0_valid (data_in_0_valid),
      .data_in_0_ready (data_in_0_ready),
      .data_out_0      (window),
      .data_out_0_valid(window_valid),
      .data_out_0_ready(window_ready)
  );

  fixed_linear #(
      .DATA_IN_0_PRECISION_0       (DATA_IN_0_PRECISION_0),
      .DATA_IN_0_PRECISION_1       (DATA_IN_0_PRECISION_1),
      .DATA_IN_0_IS_SIGNED         (DATA_IN_0_IS_SIGNED),
      .DATA_IN_0_PARALLELISM_DIM_0 (DATA_IN_0_PARALLELISM_DIM_0),
      .WEIGHT_PRECISION_0          (WEIGHT_PRECISION_0),
      .WEIGHT_PRECISION_1          (WEIGHT_PRECISION_1),
      .WEIGHT_IS_SIGNED            (WEIGHT_IS_SIGNED),
      .HAS_BIAS                    (HAS_BIAS),
      .BIAS_PRECISION_0            (BIAS_PRECISION_0),
      .BIAS_PRECISION_1            (BIAS_PRECISION_1),
      .BIAS_IS_SIGNED              (BIAS_IS_SIGNED),
      .DATA_OUT_0_PRECISION_0      (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1      (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED        (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING         (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW         (DATA_OUT_0_OVERFLOW),
      .DATA_OUT_0_TENSOR_SIZE_DIM_0(DATA_OUT_0_TENSOR_SIZE_DIM_0),
      .DATA_OUT_0_PARALLELISM_DIM_0(DATA_OUT_0_PARALLELISM_DIM_0),
      .ACC_WIDTH                   (ACC_WIDTH),
      .OPERAND_REGISTERS           (OPERAND_REGISTERS),
      .TREE_STEP                   (TREE_STEP),
      .DATA_IN_0_TENSOR_SIZE_DIM_0 (WINDOW_SIZE)
  ) u_fixed_linear (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (window),
      .data_in_0_valid (window_valid),
      .data_in_0_ready (window_ready),
      .weight          (weight),
      .weight_valid    (weight_valid),
      .weight_ready    (weight_ready),
      .bias            (bias),
      .bias_valid      (bias_valid),
      .bias_ready      (bias_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
