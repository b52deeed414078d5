// `fixed_to_mxint`: of a block, the largest magnitude says the exponent; each element is then what
// the cast to that exponent's step gives.
`default_nettype none

module prove_fixed_to_mxint #(
    parameter int WIDTH = 3,
    parameter int LANES = 1,
    parameter int BLOCK = 2,
    parameter int LOWEST = 1,
    parameter int HIGHEST = 2,
    parameter int MANTISSA = 2,
    parameter int EXPONENT = 1,
    parameter int ROUNDING = 0
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [LANES*WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    input  wire logic data_out_0_ready,
    output      logic [2:0] broken
);

  localparam int BEATS = BLOCK / LANES;
  localparam int CHOICES = HIGHEST - LOWEST + 1;
  localparam int BEAT = LANES * MANTISSA + EXPONENT;

  logic data_in_0_ready, data_out_0_valid;
  logic [BEAT-1:0] data_out_0, due;
  logic [BLOCK*WIDTH-1:0] tensor;
  logic [7:0] place;

  fixed_to_mxint #(
      .DATA_IN_0_PRECISION_0      (WIDTH),
      .DATA_IN_0_TENSOR_SIZE_DIM_0(BLOCK),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES),
      .BLOCK_SIZE                 (BLOCK),
      .LOWEST                     (LOWEST),
      .HIGHEST                    (HIGHEST),
      .DATA_OUT_0_PRECISION_0     (MANTISSA),
      .DATA_OUT_0_EXPONENT_WIDTH  (EXPONENT),
      .DATA_OUT_0_ROUNDING        (ROUNDING)
  ) dut (
      .*
  );

  logic signed [23:0] x, largest;
  logic [EXPONENT-1:0] exponent;
  logic [WIDTH-1:0] code;

  always_comb begin
    largest = '0;
    for (int k = 0; k < BLOCK; k++) begin
      code = tensor[k*WIDTH+:WIDTH];
      x = 24'($signed(code));
      if (x < 0) x = -x;
      if (x > largest) largest = x;
    end
    exponent = '0;  // one more for each power of two above the lowest that is reached
    for (int k = 1; k < CHOICES; k++) begin
      if (largest >= 24'(2 ** (LOWEST + k))) exponent = EXPONENT'(k);
    end
  end

  // The highest bit of the largest is the second of a mantissa: its step is 2**(LOWEST + e - M + 2).
  logic [CHOICES*BLOCK*MANTISSA-1:0] rounded;
  for (genvar e = 0; e < CHOICES; e++) begin : g_exponent
    for (genvar k = 0; k < BLOCK; k++) begin : g_element
      localparam int STEP = LOWEST + e - MANTISSA + 2;
      logic [WIDTH-1:0] element;
      assign element = tensor[k*WIDTH+:WIDTH];
      spec_cast #(
          .IN_FRAC(STEP > 0 ? STEP : 0), .OUT_FRAC(STEP > 0 ? 0 : -STEP), .OUT_WIDTH(MANTISSA),
          .ROUNDING(ROUNDING), .OVERFLOW(1)
      ) u_spec (
          .x(24'($signed(element))),
          .y(rounded[(e*BLOCK+k)*MANTISSA+:MANTISSA])
      );
    end
  end

  assign due = {exponent, rounded[(exponent*BLOCK+place*LANES)*MANTISSA+:LANES*MANTISSA]};

  tensor_laws #(
      .WIDTH(LANES * WIDTH), .IN_BEATS(BEATS), .OUT_BEATS(BEATS), .BEAT(BEAT), .SLOTS(8),
      .LATENCY(6), .GAP(BEATS + 7)
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
