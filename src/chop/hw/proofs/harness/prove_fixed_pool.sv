// `fixed_pool` over a sequence, windows side by side: the largest element of each, or their sum over
// a constant, exactly and then cast.
`default_nettype none

module prove_fixed_pool #(
    parameter int WIDTH = 2,
    parameter int FRAC = 1,
    parameter bit IS_SIGNED = 1'b1,
    parameter int KERNEL = 2,
    parameter int WINDOWS = 1,
    parameter bit IS_MAXIMUM = 1'b1,
    parameter int OUT_WIDTH = 2,
    parameter int OUT_FRAC = 1,
    parameter int ROUNDING = 0,
    parameter int SLOTS = 8,
    parameter int LATENCY = 8
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  logic data_in_0_ready, data_out_0_valid;
  logic [OUT_WIDTH-1:0] data_out_0, mean, due;
  logic [KERNEL*WIDTH-1:0] tensor;
  logic [7:0] place;

  fixed_pool #(
      .DATA_IN_0_PRECISION_0      (WIDTH),
      .DATA_IN_0_PRECISION_1      (FRAC),
      .DATA_IN_0_IS_SIGNED        (IS_SIGNED),
      .DATA_OUT_0_PRECISION_0     (OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1     (OUT_FRAC),
      .DATA_OUT_0_IS_SIGNED       (IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (ROUNDING),
      .DATA_IN_0_TENSOR_SIZE_DIM_1(WINDOWS * KERNEL),
      .DATA_IN_0_TENSOR_SIZE_DIM_2(1),
      .KERNEL_SIZE_DIM_0          (KERNEL),
      .KERNEL_SIZE_DIM_1          (1),
      .STRIDE_DIM_0               (KERNEL),
      .STRIDE_DIM_1               (1),
      .IS_MAXIMUM                 (IS_MAXIMUM)
  ) dut (
      .*
  );

  logic signed [23:0] x, largest, sum;
  logic [WIDTH-1:0] code;

  always_comb begin
    sum = '0;
    for (int k = 0; k < KERNEL; k++) begin
      code = tensor[k*WIDTH+:WIDTH];
      x = 24'($signed({IS_SIGNED && code[WIDTH-1], code}));
      sum = sum + x;
      if (k == 0 || x > largest) largest = x;
    end
  end

  spec_cast #(
      .IN_FRAC(FRAC), .DIVISOR(KERNEL), .OUT_WIDTH(OUT_WIDTH), .OUT_FRAC(OUT_FRAC),
      .OUT_SIGNED(IS_SIGNED), .ROUNDING(ROUNDING)
  ) u_spec (
      .x(sum),
      .y(mean)
  );

  assign due = IS_MAXIMUM ? OUT_WIDTH'(largest) : mean;

  tensor_laws #(
      .WIDTH(WIDTH), .IN_BEATS(KERNEL), .OUT_BEATS(1), .BEAT(OUT_WIDTH), .SLOTS(SLOTS),
      .LATENCY(LATENCY), .GAP(LATENCY + KERNEL + 2)
  ) u_laws (
      .clk      (clk),
      .rst      (rst),
      .is_lawful(1'b1),
      .is_fed   (data_in_0_valid),
      .is_moving(1'b1),
      .taken    (data_in_0_valid && data_in_0_ready),
      .beat     (data_in_0),
      .tensor   (tensor),
      .place    (place),
      .due      (due),
      .data     (data_out_0),
      .valid    (data_out_0_valid),
      .ready    (data_out_0_ready),
      .broken   (broken)
  );

endmodule

`default_nettype wire
