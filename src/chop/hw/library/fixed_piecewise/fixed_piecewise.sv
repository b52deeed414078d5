// A function of one element by straight lines: the high bits of x, read as an unsigned number,
// choose a line, the low bits go along it: data_out_0 = cast(base + slope * low bits).
// Latency 5 cycles, throughput 1 beat per cycle; one read port of the table per lane. Block RAM gives
// its word late in a cycle, and a multiplier may be far from both: a register is between them all.
`default_nettype none

module fixed_piecewise #(
    parameter int DATA_IN_0_PRECISION_0       = 14,    // width of an input, bits, 2 or more
    parameter int LOW_BITS                    = 6,     // bits that go along a line, 1 or more
    parameter int BASE_WIDTH                  = 20,    // width of a line's base, bits, 1 or more
    parameter int SLOPE_WIDTH                 = 12,    // width of its slope, bits, 1 or more
    parameter int LINE_FRAC                   = 14,    // fractional bits of both
    parameter int DATA_OUT_0_PRECISION_0      = 8,     // width of an output element, bits, 1 or more
    parameter int DATA_OUT_0_PRECISION_1      = 4,     // its fractional bits
    parameter bit DATA_OUT_0_IS_SIGNED        = 1'b1,  // two's complement
    parameter int DATA_OUT_0_ROUNDING         = 0,     // as in fixed_cast
    parameter int DATA_OUT_0_OVERFLOW         = 0,     // as in fixed_cast
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 1,     // elements per beat, 1 or more
    parameter     INIT_FILE = "lines.mem"  // 2**(width - LOW_BITS) words {slope, base}
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

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (BASE_WIDTH < 1 || SLOPE_WIDTH < 1 || DATA_OUT_0_PRECISION_0 < 1
      || DATA_IN_0_PARALLELISM_DIM_0 < 1) begin : g_refuse_size
    $error("fixed_piecewise: widths and lanes must be 1 or more, got %0d, %0d, %0d and %0d",
           BASE_WIDTH, SLOPE_WIDTH, DATA_OUT_0_PRECISION_0, DATA_IN_0_PARALLELISM_DIM_0);
  end
  if (LOW_BITS < 1 || DATA_IN_0_PRECISION_0 <= LOW_BITS) begin : g_refuse_bits
    $error("fixed_piecewise: 1 or more of %0d bits go along a line and 1 or more choose it, got %0d",
           DATA_IN_0_PRECISION_0, LOW_BITS);
  end
`endif

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int IN_WIDTH = DATA_IN_0_PRECISION_0;
  localparam int HIGH_BITS = IN_WIDTH - LOW_BITS;
  localparam int LINE_WIDTH = BASE_WIDTH + SLOPE_WIDTH;
  localparam int PRODUCT_WIDTH = SLOPE_WIDTH + LOW_BITS + 1;
  localparam int WIDE = (PRODUCT_WIDTH > BASE_WIDTH ? PRODUCT_WIDTH : BASE_WIDTH) + 1;

  logic [LINE_WIDTH-1:0] lines[2**HIGH_BITS];
  logic [LANES*WIDE-1:0] exact_q;
  logic [LANES*DATA_OUT_0_PRECISION_0-1:0] cast;
  logic enable, line_valid_q, late_valid_q, product_valid_q, exact_valid_q;

  initial $readmemh(INIT_FILE, lines);

  assign data_in_0_ready = enable;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic [LINE_WIDTH-1:0] line_q, late_line_q;
    logic [LOW_BITS-1:0] low_q, late_low_q;
    logic [BASE_WIDTH-1:0] base_q;
    logic signed [PRODUCT_WIDTH-1:0] slope, along, product_q;
    assign slope = PRODUCT_WIDTH'($signed(late_line_q[LINE_WIDTH-1:BASE_WIDTH]));
    assign along = PRODUCT_WIDTH'($signed({1'b0, late_low_q}));
    always_ff @(posedge clk) begin
      if (enable) begin
        line_q      <= lines[data_in_0[lane*IN_WIDTH+LOW_BITS+:HIGH_BITS]];
        low_q       <= data_in_0[lane*IN_WIDTH+:LOW_BITS];
        late_line_q <= line_q;
        late_low_q  <= low_q;
        base_q      <= late_line_q[BASE_WIDTH-1:0];
        product_q   <= slope * along;
        exact_q[lane*WIDE+:WIDE] <= WIDE'($signed(base_q)) + WIDE'(product_q);
      end
    end
  end

  always_ff @(posedge clk) begin
    if (enable) begin
      line_valid_q    <= data_in_0_valid;
      late_valid_q    <= line_valid_q;
      product_valid_q <= late_valid_q;
      exact_valid_q   <= product_valid_q;
    end
    if (rst) begin
      line_valid_q    <= 1'b0;
      late_valid_q    <= 1'b0;
      product_valid_q <= 1'b0;
      exact_valid_q   <= 1'b0;
    end
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (WIDE),
      .DATA_IN_0_PRECISION_1      (LINE_FRAC),
      .DATA_OUT_0_PRECISION_0     (DATA_OUT_0_PRECISION_0),
      .DATA_OUT_0_PRECISION_1     (DATA_OUT_0_PRECISION_1),
      .DATA_OUT_0_IS_SIGNED       (DATA_OUT_0_IS_SIGNED),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (DATA_OUT_0_OVERFLOW),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_cast (
      .data_in_0 (exact_q),
      .data_out_0(cast)
  );

  skid_buffer #(
      .DATA_WIDTH(LANES * DATA_OUT_0_PRECISION_0)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (cast),
      .data_in_0_valid (exact_valid_q),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
