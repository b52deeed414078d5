// Brings MXINT elements to fixed point: shifts each mantissa up by the exponent of its block, then
// rounds and brings into the range. Latency 2 cycles, throughput 1 beat per cycle.
//
// A beat of data_in_0 has the mantissas of its lanes, lane 0 low, and above them the exponent.
`default_nettype none

module mxint_to_fixed #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of a mantissa, bits, 2 or more
    parameter int DATA_IN_0_PRECISION_1       = 6,  // its fractional bits at exponent 0
    parameter int DATA_IN_0_EXPONENT_WIDTH    = 3,  // width of the exponent, bits, 1 or more
    parameter int DATA_IN_0_TOP               = 5,  // largest exponent
    parameter int DATA_OUT_0_PRECISION_0      = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,  // as in fixed_cast
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1   // elements per beat, 1 or more
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0
        +DATA_IN_0_EXPONENT_WIDTH-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int MANTISSA = DATA_IN_0_PRECISION_0;
  localparam int EXPONENT = DATA_IN_0_EXPONENT_WIDTH;
  localparam int SHIFTED = MANTISSA + DATA_IN_0_TOP;

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (MANTISSA < 2 || EXPONENT < 1 || DATA_OUT_0_PRECISION_0 < 1 || LANES < 1) begin : g_refuse_size
    $error("mxint_to_fixed: widths and lanes must be 2, 1, 1 and 1 or more, got %0d, %0d, %0d, %0d",
           MANTISSA, EXPONENT, DATA_OUT_0_PRECISION_0, LANES);
  end
  if (DATA_IN_0_TOP < 0 || DATA_IN_0_TOP >= 2 ** EXPONENT) begin : g_refuse_top
    $error("mxint_to_fixed: an exponent of %0d bits is never %0d", EXPONENT, DATA_IN_0_TOP);
  end
`endif

  logic [LANES*SHIFTED-1:0] shifted_q;
  logic [LANES*DATA_OUT_0_PRECISION_0-1:0] cast;
  logic [EXPONENT-1:0] exponent;
  logic shifted_valid_q, enable;

  assign exponent        = data_in_0[LANES*MANTISSA+:EXPONENT];
  assign data_in_0_ready = enable;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [SHIFTED-1:0] mantissa;
    assign mantissa = SHIFTED'($signed(data_in_0[lane*MANTISSA+:MANTISSA]));
    always_ff @(posedge clk) begin
      if (enable) shifted_q[lane*SHIFTED+:SHIFTED] <= mantissa <<< exponent;
    end
  end

  always_ff @(posedge clk) begin
    if (enable) shifted_valid_q <= data_in_0_valid;
    if (rst) shifted_valid_q <= 1'b0;
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (SHIFTED),
      .DATA_IN_0_PRECISION_1      (DATA_IN_0_PRECISION_1),
      .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_cast (
      .data_in_0 (shifted_q),
      .data_out_0(cast)
  );

  skid_buffer #(
      .DATA_WIDTH(LANES * DATA_OUT_0_PRECISION_0)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (cast),
      .data_in_0_valid (shifted_valid_q),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
