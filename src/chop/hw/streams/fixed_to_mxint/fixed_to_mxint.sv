// Brings fixed-point elements to MXINT: integers that share an exponent with their block.
// Latency: a block and 4 cycles; throughput 1 beat per cycle, the next block comes while one goes.
//
// Blocks of BLOCK_SIZE elements lie along rows of DATA_IN_0_TENSOR_SIZE_DIM_0; the last of a row may
// be shorter. The exponent is the place of the highest bit that a magnitude of the block has, from
// LOWEST to HIGHEST and counted from LOWEST. The elements are shifted up by what their block is below
// HIGHEST; then one cast rounds them all, to the bits from HIGHEST on that a mantissa has.
// A beat of data_out_0 has the mantissas of its lanes, lane 0 low, and above them the exponent.
`default_nettype none

module fixed_to_mxint #(
    parameter int DATA_IN_0_PRECISION_0       = 12,  // width of an input element, bits, 1 or more
    parameter bit DATA_IN_0_IS_SIGNED         = 1'b1,  // two's complement
    parameter int DATA_IN_0_TENSOR_SIZE_DIM_0 = 8,  // elements of a row
    parameter int DATA_IN_0_PARALLELISM_DIM_0 = 2,  // lanes; divides the row and the block
    parameter int BLOCK_SIZE                  = 4,  // elements of a block, at most a row
    parameter int LOWEST                      = 6,  // place of the highest bit at exponent 0
    parameter int HIGHEST                     = 11,  // place of the highest bit at the last exponent
    parameter int DATA_OUT_0_PRECISION_0      = 8,  // width of a mantissa, bits, 2 or more
    parameter int DATA_OUT_0_EXPONENT_WIDTH   = 3,  // width of the exponent, bits, 1 or more
    parameter int DATA_OUT_0_ROUNDING         = 0   // as in fixed_cast
) (
    input  wire logic clk,
    input  wire logic rst,
    input  wire logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_IN_0_PRECISION_0-1:0] data_in_0,
    input  wire logic data_in_0_valid,
    output      logic data_in_0_ready,
    output      logic [DATA_IN_0_PARALLELISM_DIM_0*DATA_OUT_0_PRECISION_0
        +DATA_OUT_0_EXPONENT_WIDTH-1:0] data_out_0,
    output      logic data_out_0_valid,
    input  wire logic data_out_0_ready
);

  localparam int LANES = DATA_IN_0_PARALLELISM_DIM_0;
  localparam int WIDTH = DATA_IN_0_PRECISION_0;
  localparam int SIZE = DATA_IN_0_TENSOR_SIZE_DIM_0;
  localparam int MANTISSA = DATA_OUT_0_PRECISION_0;
  localparam int EXPONENT = DATA_OUT_0_EXPONENT_WIDTH;
  localparam int TOP = HIGHEST - LOWEST;

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (WIDTH < 1 || MANTISSA < 2 || EXPONENT < 1) begin : g_refuse_size
    $error("fixed_to_mxint: widths must be 1, 2 and 1 or more, got %0d, %0d and %0d",
           WIDTH, MANTISSA, EXPONENT);
  end
  if (LANES < 1 || SIZE % LANES != 0 || BLOCK_SIZE < 1 || BLOCK_SIZE % LANES != 0
      || BLOCK_SIZE > SIZE) begin : g_refuse_block
    $error("fixed_to_mxint: the parallelism must divide row and block, got %0d of %0d and %0d",
           LANES, SIZE, BLOCK_SIZE);
  end
  if (TOP < 0 || TOP >= 2 ** EXPONENT || (TOP > 0 && HIGHEST >= WIDTH)) begin : g_refuse_place
    $error("fixed_to_mxint: no exponent of %0d bits has the places %0d to %0d of %0d bits",
           EXPONENT, LOWEST, HIGHEST, WIDTH);
  end
`endif

  // Beats of a block, of the last block of a row, and of all blocks before that.
  localparam int BEATS = BLOCK_SIZE / LANES;
  localparam int TAIL = SIZE % BLOCK_SIZE == 0 ? BEATS : SIZE % BLOCK_SIZE / LANES;
  localparam int BLOCKS = (SIZE + BLOCK_SIZE - 1) / BLOCK_SIZE;
  // One slot more than a block, which is taken while the block's first beat leaves. Of three whole
  // blocks in turn one has BEATS beats and the others one each at least: no more than two are here.
  localparam int SLOTS = BEATS + 1;
  localparam int SLOT_WIDTH = $clog2(SLOTS);
  localparam int LEVEL_WIDTH = $clog2(SLOTS + 1);
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam int BLOCK_WIDTH = BLOCKS > 1 ? $clog2(BLOCKS) : 1;

  logic [LANES*WIDTH-1:0] beats_q[SLOTS];
  logic [WIDTH-1:0] bits_q[2];
  logic [WIDTH-1:0] seen_q, seen;
  logic [SLOT_WIDTH-1:0] write_q, read_q;
  logic [LEVEL_WIDTH-1:0] level_q;
  logic [BEAT_WIDTH-1:0] beat_in_q, beat_out_q, last_in, last_out;
  logic [BLOCK_WIDTH-1:0] block_in_q, block_out_q;
  logic bits_write_q, bits_read_q;
  logic [1:0] blocks_q;
  logic load, issue, ends, leaves, enable;

  // The bits that any magnitude of the block has: the highest is that of the largest.
  always_comb begin
    seen = beat_in_q == '0 ? '0 : seen_q;
    for (int lane = 0; lane < LANES; lane++) begin
      seen |= DATA_IN_0_IS_SIGNED && data_in_0[lane*WIDTH+WIDTH-1]
          ? -data_in_0[lane*WIDTH+:WIDTH] : data_in_0[lane*WIDTH+:WIDTH];
    end
  end

  assign last_in  = block_in_q == BLOCK_WIDTH'(BLOCKS - 1)
      ? BEAT_WIDTH'(TAIL - 1) : BEAT_WIDTH'(BEATS - 1);
  assign last_out = block_out_q == BLOCK_WIDTH'(BLOCKS - 1)
      ? BEAT_WIDTH'(TAIL - 1) : BEAT_WIDTH'(BEATS - 1);

  assign data_in_0_ready = level_q != LEVEL_WIDTH'(SLOTS);
  assign load            = data_in_0_valid && data_in_0_ready;
  assign issue           = enable && blocks_q != '0;
  assign ends            = load && beat_in_q == last_in;
  assign leaves          = issue && beat_out_q == last_out;

  logic [LANES*WIDTH-1:0] beat_q, placed_q;
  logic [WIDTH-1:0] block_bits_q;
  logic [EXPONENT-1:0] exponent, exponent_q, shifted_exponent_q;
  logic beat_valid_q, placed_valid_q, shifted_valid_q;

  always_ff @(posedge clk) begin  // memories and data, without reset
    if (load) begin
      beats_q[write_q] <= data_in_0;
      seen_q           <= seen;
    end
    if (ends) bits_q[bits_write_q] <= seen;  // not before: its place may still be read
    if (enable) begin
      beat_q             <= beats_q[read_q];
      block_bits_q       <= bits_q[bits_read_q];
      placed_q           <= beat_q;
      exponent_q         <= exponent;
      shifted_exponent_q <= exponent_q;
    end
  end

  always_comb begin
    exponent = '0;
    for (int place = 0; place < WIDTH; place++) begin
      if (place > LOWEST && block_bits_q[place]) begin
        exponent = place > HIGHEST ? EXPONENT'(TOP) : EXPONENT'(place - LOWEST);
      end
    end
  end

  always_ff @(posedge clk) begin
    if (load) begin
      write_q   <= write_q == SLOT_WIDTH'(SLOTS - 1) ? '0 : write_q + 1'b1;
      beat_in_q <= ends ? '0 : beat_in_q + 1'b1;
    end
    if (ends) block_in_q <= block_in_q == BLOCK_WIDTH'(BLOCKS - 1) ? '0 : block_in_q + 1'b1;
    if (issue) begin
      read_q     <= read_q == SLOT_WIDTH'(SLOTS - 1) ? '0 : read_q + 1'b1;
      beat_out_q <= leaves ? '0 : beat_out_q + 1'b1;
    end
    if (leaves) block_out_q <= block_out_q == BLOCK_WIDTH'(BLOCKS - 1) ? '0 : block_out_q + 1'b1;
    if (load && !issue) level_q <= level_q + 1'b1;
    if (issue && !load) level_q <= level_q - 1'b1;
    if (ends) bits_write_q <= !bits_write_q;
    if (leaves) bits_read_q <= !bits_read_q;
    if (ends && !leaves) blocks_q <= blocks_q + 1'b1;
    if (leaves && !ends) blocks_q <= blocks_q - 1'b1;
    if (enable) begin
      beat_valid_q    <= issue;
      placed_valid_q  <= beat_valid_q;
      shifted_valid_q <= placed_valid_q;
    end
    if (rst) begin
      write_q         <= '0;
      read_q          <= '0;
      level_q         <= '0;
      beat_in_q       <= '0;
      beat_out_q      <= '0;
      block_in_q      <= '0;
      block_out_q     <= '0;
      bits_write_q    <= 1'b0;
      bits_read_q     <= 1'b0;
      blocks_q        <= '0;
      beat_valid_q    <= 1'b0;
      placed_valid_q  <= 1'b0;
      shifted_valid_q <= 1'b0;
    end
  end

  // Below HIGHEST + 1 bits where the block is in its place, as wide as the input where it is above.
  localparam int X_WIDTH = WIDTH + (DATA_IN_0_IS_SIGNED ? 0 : 1);
  localparam int SHIFTED = TOP > 0 && HIGHEST + 2 > X_WIDTH ? HIGHEST + 2 : X_WIDTH;
  logic [LANES*SHIFTED-1:0] shifted_q;
  logic [LANES*MANTISSA-1:0] mantissas;

  for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
    logic sign;
    logic signed [SHIFTED-1:0] x;
    assign sign = DATA_IN_0_IS_SIGNED && placed_q[lane*WIDTH+WIDTH-1];
    assign x    = SHIFTED'($signed({sign, placed_q[lane*WIDTH+:WIDTH]}));
    always_ff @(posedge clk) begin
      if (enable) shifted_q[lane*SHIFTED+:SHIFTED] <= x <<< (EXPONENT'(TOP) - exponent_q);
    end
  end

  fixed_cast #(
      .DATA_IN_0_PRECISION_0      (SHIFTED),
      .DATA_IN_0_PRECISION_1      (HIGHEST - (MANTISSA - 2)),
      .DATA_OUT_0_PRECISION_0     (MANTISSA),
      .DATA_OUT_0_PRECISION_1     (0),
      .DATA_OUT_0_ROUNDING        (DATA_OUT_0_ROUNDING),
      .DATA_OUT_0_OVERFLOW        (1),
      .DATA_IN_0_PARALLELISM_DIM_0(LANES)
  ) u_fixed_cast (
      .data_in_0 (shifted_q),
      .data_out_0(mantissas)
  );

  skid_buffer #(
      .DATA_WIDTH(LANES * MANTISSA + EXPONENT)
  ) u_skid_buffer (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       ({shifted_exponent_q, mantissas}),
      .data_in_0_valid (shifted_valid_q),
      .data_in_0_ready (enable),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

endmodule

`default_nettype wire
