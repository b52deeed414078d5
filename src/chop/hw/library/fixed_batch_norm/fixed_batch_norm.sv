// Batch normalisation with its statistics folded in: data_out_0 = cast(weight * data_in_0 + bias),
// one weight and one bias per channel. Both come as streams in the order of the channels.
// Latency 3 cycles, throughput 1 beat per cycle: product, sum and cast have a cycle each.
`default_nettype none

module fixed_batch_norm #(
    parameter int DATA_IN_0_PRECISION_0       = 8,  // width of an input element, bits, 1 or more
    parameter int DATA_IN_0_PRECISION_1       = 4,  // its fractional bits
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int WEIGHT_PRECISION_0          = 8,  // width of a signed weight, bits, 1 or more
    parameter int WEIGHT_PRECISION_1          = 4,  // its fractional bits
    parameter int BIAS_PRECISION_0            = 8,  // width of a signed bias, bits, 1 or more
    parameter int BIAS_PRECISION_1            = 4,  // its fractional bits
    parameter int DATA_OUT_0_PRECISION_0      = 8,  // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,  // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,  // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,  // as in fixed_cast
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1   // elements per beat of each stream, 1 or more
) (
    input  wire logic clk,
    input  wire logic rst,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*WEIGHT_PRECISION_0-1:0] weight,
    input  wire logic weight_valid,
    output      logic weight_ready,

    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*BIAS_PRECISION_0-1:0] bias,
    input  wire logic bias_valid,
    output      logic bias_ready,

    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_IN_0_PRECISION_0 < 1 || WEIGHT_PRECISION_0 < 1 || BIAS_PRECISION_0 < 1
      || DATA_OUT_0_PRECISION_0 < 1 || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_batch_norm: widths and lanes must be 1 or more, got %0d, %0d, %0d, %0d and %0d",
           DATA_IN_0_PRECISION_0, WEIGHT_PRECISION_0, BIAS_PRECISION_0, DATA_OUT_0_PRECISION_0,
           DATA_IN_0_PARALLELISM_DIM_0);
  end
`endif

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int OUT_WIDTH = DATA_OUT_0_PRECISION_0;
  localparam int PRODUCT_FRAC = DATA_IN_0_PRECISION_1 + WEIGHT_PRECISION_1;
  localparam int FRAC = BIAS_PRECISION_1 > PRODUCT_FRAC ? BIAS_PRECISION_1 : PRODUCT_FRAC;
  localparam int PRODUCT_SHIFT = FRAC - PRODUCT_FRAC;
  localparam int BIAS_SHIFT = FRAC - BIAS_PRECISION_1;
  localparam int PRODUCT_WIDTH =
      IN_WIDTH + (DATA_IN_0_IS_SIGNED ? 0 : 1) + WEIGHT_PRECISION_0 + PRODUCT_SHIFT;
  localparam int BIAS_WIDTH = BIAS_PRECISION_0 + BIAS_SHIFT;
  localparam int WIDE = (PRODUCT_WIDTH > BIAS_WIDTH ? PRODUCT_WIDTH : BIAS_WIDTH) + 1;

  logic [LANES*WIDE-1:0] exact_q;
  logic [LANES*OUT_WIDTH-1:0] result;
  logic skid_ready, constants_valid;
  logic [1:0] valid_q;

  assign constants_valid = weight_valid && bias_valid;
  assign data_in_0_ready = skid_ready && constants_valid;
  assign weight_ready    = skid_ready && data_in_0_valid && bias_valid;
  assign bias_ready      = skid_ready && data_in_0_valid && weight_valid;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic signed [WIDE-1:0] x, w, b, product_q, bias_q;
    logic sign;
    assign sign = DATA_IN_0_IS_SIGNED && data_in_0[lane*IN_WIDTH+IN_WIDTH-1];
    assign x = WIDE'($signed({sign, data_in_0[lane*IN_WIDTH+:IN_WIDTH]}));
    assign w = WIDE'($signed(weight[lane*WEIGHT_PRECISION_0+:WEIGHT_PRECISION_0]));
    assign b = WIDE'($signed(bias[lane*BIAS_PRECISION_0+:BIAS_PRECISION_0]));
    always_ff @(posedge clk) begin
      if (skid_ready) begin
        product_q <= x * w;
        bias_q    <= b;
        exact_q[lane*WIDE+:WIDE] <= (product_q <<< PRODUCT_SHIFT) + (bias_q <<< BIAS_SHIFT);
      end
    end
  end

  always_ff @(posedge clk) begin
    if (skid_ready) valid_q <= {valid_q[0], data_in_0_valid && constants_valid};
    if (rst) valid_q <= '0;
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (WIDE),
      .DATA_IN_0_PRECISION_1      (FRAC),
      .DATA_OUT_0_PRECISION_0     (OUT_WIDTH),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_cast (
      .data_in_0 (exact_q),
      .data_out_0(result)
  );

  skid_buffer #(
      .DATA_WIDTH(LANES * OUT_WIDTH)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (result),
      .data_in_0_valid (valid_q[1]),
      .data_in_0_ready (skid_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
