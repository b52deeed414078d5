// Llama decoder: one datapath, used for all layers in turn by a program in ROM.
//
// Prompt tokens come on `token_in`, the last with token_in_last. Then `new_tokens` tokens leave on
// `token_out`, each the argmax of its logits; each is also the next input. `logit` shows the
// logits as they are computed. Weights, tables of the rotary embedding and the cache are in
// memory, behind AXI4. An instruction reads one range of memory in order. It ends a fixed number of
// cycles (`tail`) after its last beat. Fields of an instruction: `decode_program.py`.
`default_nettype none

module decode_engine #(
    parameter int DATA_WIDTH      = 128,   // bits of a beat of memory
    parameter int ADDRESS_WIDTH   = 32,    // bits of a byte address
    parameter int WEIGHT_WIDTH    = 4,     // bits of a weight, 4 or 8
    parameter int CACHE_WIDTH     = 8,     // bits of a mantissa of the cache, 4 or 8
    parameter int BLOCK           = 32,    // elements that share an exponent
    parameter int HIDDEN          = 64,    // elements of the residual stream
    parameter int RESIDUAL        = 16,    // bits of such an element, 16 to 24
    parameter int HEAD_DIM        = 32,    // elements of a head
    parameter int VECTOR          = 128,   // elements of the longest vector
    parameter int MAX_LENGTH      = 64,    // tokens of the cache
    parameter int TOKEN_WIDTH     = 16,    // bits of a token
    parameter int INSTRUCTIONS    = 64,    // words of the program
    parameter int EMBEDDING_BEATS = 8,     // beats of a row of the embedding
    parameter int ROTATION_BEATS  = 4,     // beats of the cosines and sines of a position
    parameter int GUARD           = 10,    // guard bits of the norm, even; below 0: bits dropped
    parameter logic [61:0] EPS    = 62'd1, // eps of the norm as a code
    parameter int SILU_LOW_BITS   = 7,     // see silu_gate
    parameter int SILU_BASE_WIDTH = 36,
    parameter int SILU_SLOPE_WIDTH = 20,
    parameter int BURST           = 16,    // see burst_reader
    parameter int OUTSTANDING     = 8,
    parameter int QUEUE           = 256,
    parameter int WRITE_QUEUE     = 32,    // words of the cache that one layer writes, or more
    parameter     PROGRAM_FILE    = "program.mem",
    parameter     SILU_FILE       = "silu.mem",
    parameter     ROOT_FILE       = "root.mem",
    parameter     EXP_FILE        = "exp.mem",
    parameter     FINE_FILE       = "fine.mem",
    parameter     RECIPROCAL_FILE = "reciprocal.mem"
) (
    input  wire logic                     clk,
    input  wire logic                     rst,
    input  wire logic [  TOKEN_WIDTH-1:0] token_in,
    input  wire logic                     token_in_last,
    input  wire logic                     token_in_valid,
    output      logic                     token_in_ready,
    input  wire logic [             15:0] new_tokens,      // 1 or more, stable
    output      logic [  TOKEN_WIDTH-1:0] token_out,
    output      logic                     token_out_last,
    output      logic                     token_out_valid,
    input  wire logic                     token_out_ready,
    output      logic signed [      15:0] logit,
    output      logic                     logit_valid,
    output      logic [ADDRESS_WIDTH-1:0] m_axi_araddr,
    output      logic [              7:0] m_axi_arlen,
    output      logic                     m_axi_arvalid,
    input  wire logic                     m_axi_arready,
    input  wire logic [   DATA_WIDTH-1:0] m_axi_rdata,
    input  wire logic                     m_axi_rlast,
    input  wire logic                     m_axi_rvalid,
    output      logic                     m_axi_rready,
    output      logic [ADDRESS_WIDTH-1:0] m_axi_awaddr,
    output      logic                     m_axi_awvalid,
    input  wire logic                     m_axi_awready,
    output      logic [   DATA_WIDTH-1:0] m_axi_wdata,
    output      logic                     m_axi_wvalid,
    input  wire logic                     m_axi_wready,
    input  wire logic                     m_axi_bvalid,
    output      logic                     m_axi_bready
);

  localparam int LANE_WIDTH = WEIGHT_WIDTH < CACHE_WIDTH ? WEIGHT_WIDTH : CACHE_WIDTH;
  localparam int LANES = DATA_WIDTH / LANE_WIDTH;  // multipliers
  localparam int WIDE_LANES = DATA_WIDTH / 8;
  localparam int CACHE_LANES = DATA_WIDTH / CACHE_WIDTH;
  localparam int CODES = DATA_WIDTH / 16;  // 16-bit codes of a beat
  localparam int EMBED_WIDTH = RESIDUAL > 16 ? 32 : 16;  // bits of a code of the embedding
  localparam int EMBED_CODES = DATA_WIDTH / EMBED_WIDTH;
  localparam int BLOCK_BEATS = BLOCK / LANES;
  localparam int WIDE_BLOCK_BEATS = BLOCK / WIDE_LANES;
  localparam int ROW_BEATS = 1 + HEAD_DIM / CACHE_LANES;  // a row of the cache, with its header
  localparam int ROW_BLOCKS = HEAD_DIM / BLOCK;
  localparam int HEAD_STRIDE = MAX_LENGTH * ROW_BEATS;

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (BLOCK_BEATS < 1 || WIDE_LANES < 2) begin : g_refuse
    $error("decode_engine: a beat of %0d bits has more than a block of %0d weights", DATA_WIDTH,
           BLOCK);
  end
`endif

  localparam int BEAT_ADDRESS = 28;
  localparam int PC_WIDTH = $clog2(INSTRUCTIONS + 1);
  localparam int POSITION_WIDTH = $clog2(MAX_LENGTH + 1);
  localparam int SCORE_INDEX = MAX_LENGTH > 1 ? $clog2(MAX_LENGTH) : 1;
  localparam int HIDDEN_INDEX = $clog2(HIDDEN);
  localparam int WORDS = VECTOR / LANES;
  localparam int WORD_INDEX = WORDS > 1 ? $clog2(WORDS) : 1;
  localparam int BLOCKS = VECTOR / BLOCK;
  localparam int BLOCK_INDEX = BLOCKS > 1 ? $clog2(BLOCKS) : 1;
  localparam int ROOT_WAIT = 32;     // cycles from the residual to its inverse root
  localparam int FINISH_WAIT = 24;   // cycles from the last value to the results

  typedef enum logic [2:0] {EMBED, ROTATION, NORM, MATRIX, SCORES, VALUES} op_e;
  typedef enum logic [1:0] {TO_CACHE, TO_VECTOR, TO_HIDDEN, TO_LOGITS} to_e;
  typedef struct packed {
    logic [11:0] tail;
    logic [27:0] write;
    logic [27:0] beats;
    logic [27:0] address;
    logic [11:0] offset;
    logic [7:0]  group;
    logic [9:0]  row_blocks;
    logic [5:0]  shift_2;
    logic [5:0]  shift_1;
    logic [5:0]  shift_0;
    logic        head;
    logic        fence;
    logic        target;
    logic        source;
    logic        gated;
    logic        rotate;
    to_e         to;
    op_e         op;
  } instruction_t;

  instruction_t rom[INSTRUCTIONS];
  instruction_t now_q, fetched_q;  // of the datapath, and of the reader
  instruction_t word_now_q, word_fetched_q;  // as block RAM returns them, late in a cycle

  initial $readmemh(PROGRAM_FILE, rom);

  // -- tokens -------------------------------------------------------------------------------------

  typedef enum logic [2:0] {IDLE, FETCH, LOAD, BEGIN, ROOT, RUN, TAIL, SEND} state_e;

  state_e state_q;
  logic [TOKEN_WIDTH-1:0] token_q, best_token_q;
  logic [POSITION_WIDTH-1:0] position_q;
  logic [15:0] sent_q;
  logic [PC_WIDTH-1:0] pc_q;
  logic [11:0] tail_q;
  logic is_generating_q, needs_logits_q, starts, restarts, is_over, begins, ends;

  assign token_in_ready  = state_q == IDLE && !is_generating_q;
  assign restarts        = state_q == SEND && token_out_ready && !token_out_last;
  assign starts          = (token_in_valid && token_in_ready) || restarts;
  assign token_out       = best_token_q;
  assign token_out_valid = state_q == SEND;
  assign begins          = state_q == BEGIN;
  assign ends            = state_q == TAIL && tail_q == now_q.tail;
  assign is_over         = pc_q == PC_WIDTH'(INSTRUCTIONS) || (now_q.head && !needs_logits_q);

  // -- memory -------------------------------------------------------------------------------------

  logic [DATA_WIDTH-1:0] beat;
  logic beat_valid, beat_ready, pop;
  logic [BEAT_ADDRESS-1:0] range_address, range_beats, beats_left_q;
  logic [BEAT_ADDRESS-1:0] cache_start_q, cache_beats_q, embedding_start_q, rotation_start_q;
  logic range_valid, range_ready, is_written;

  typedef enum logic [1:0] {WALK_IDLE, WALK_FETCH, WALK_LOAD, WALK_OFFER} walk_e;

  walk_e walk_q;
  logic [PC_WIDTH-1:0] walk_pc_q;
  logic [1:0] caches_read_q, caches_done_q;  // instructions that write the cache
  logic walk_over, fence_open;

  assign walk_over = walk_pc_q == PC_WIDTH'(INSTRUCTIONS) || (fetched_q.head && !needs_logits_q);
  assign fence_open = !fetched_q.fence || (is_written && caches_read_q == caches_done_q);
  assign range_valid = walk_q == WALK_OFFER && !walk_over && fence_open;

  always_comb begin
    range_address = fetched_q.address;
    range_beats   = fetched_q.beats;
    if (fetched_q.op == EMBED) begin
      range_address = fetched_q.address + embedding_start_q;
    end
    if (fetched_q.op == ROTATION) range_address = fetched_q.address + rotation_start_q;
    if (fetched_q.op == SCORES || fetched_q.op == VALUES) range_beats = cache_beats_q;
  end

  // token and position are stable two cycles before these are used
  always_ff @(posedge clk) begin
    cache_start_q     <= BEAT_ADDRESS'(position_q) * BEAT_ADDRESS'(ROW_BEATS);
    cache_beats_q     <= cache_start_q + BEAT_ADDRESS'(ROW_BEATS);
    embedding_start_q <= BEAT_ADDRESS'(token_q) * BEAT_ADDRESS'(EMBEDDING_BEATS);
    rotation_start_q  <= BEAT_ADDRESS'(position_q) * BEAT_ADDRESS'(ROTATION_BEATS);
  end

  always_ff @(posedge clk) begin
    word_fetched_q <= rom[walk_pc_q < PC_WIDTH'(INSTRUCTIONS) ? walk_pc_q : '0];
    fetched_q      <= word_fetched_q;
    case (walk_q)
      WALK_FETCH: walk_q <= WALK_LOAD;
      WALK_LOAD: walk_q <= WALK_OFFER;
      WALK_OFFER: begin
        if (walk_over) walk_q <= WALK_IDLE;
        else if (range_valid && range_ready) begin
          walk_q    <= WALK_FETCH;
          walk_pc_q <= walk_pc_q + 1'b1;
          if (fetched_q.op == MATRIX && fetched_q.to == TO_CACHE) begin
            caches_read_q <= caches_read_q + 1'b1;
          end
        end
      end
      default: ;
    endcase
    if (starts) begin
      walk_q    <= WALK_FETCH;
      walk_pc_q <= '0;
    end
    if (ends && now_q.op == MATRIX && now_q.to == TO_CACHE) begin
      caches_done_q <= caches_done_q + 1'b1;
    end
    if (rst) begin
      walk_q        <= WALK_IDLE;
      caches_read_q <= '0;
      caches_done_q <= '0;
    end
  end

  burst_reader #(
      .DATA_WIDTH   (DATA_WIDTH),
      .ADDRESS_WIDTH(ADDRESS_WIDTH),
      .BEAT_ADDRESS (BEAT_ADDRESS),
      .BURST        (BURST),
      .OUTSTANDING  (OUTSTANDING),
      .DEPTH        (QUEUE)
  ) u_reader (
      .clk             (clk),
      .rst             (rst),
      .range_address   (range_address),
      .range_beats     (range_beats),
      .range_valid     (range_valid),
      .range_ready     (range_ready),
      .m_axi_araddr    (m_axi_araddr),
      .m_axi_arlen     (m_axi_arlen),
      .m_axi_arvalid   (m_axi_arvalid),
      .m_axi_arready   (m_axi_arready),
      .m_axi_rdata     (m_axi_rdata),
      .m_axi_rlast     (m_axi_rlast),
      .m_axi_rvalid    (m_axi_rvalid),
      .m_axi_rready    (m_axi_rready),
      .data_out_0      (beat),
      .data_out_0_valid(beat_valid),
      .data_out_0_ready(beat_ready)
  );

  // -- sequencer ----------------------------------------------------------------------------------

  localparam int CODE_INDEX = CODES > 1 ? $clog2(CODES) : 1;

  logic [CODE_INDEX-1:0] code_q;  // place in a beat of codes
  logic has_codes_q, code_last, is_blocks_q;
  logic signed [15:0] code;
  logic signed [RESIDUAL-1:0] embedding;

  assign code_last  = code_q == CODE_INDEX'((now_q.op == EMBED ? EMBED_CODES : CODES) - 1);
  assign beat_ready = state_q == RUN && (!has_codes_q || code_last);
  assign pop        = beat_ready && beat_valid;
  assign code       = beat[16*code_q+:16];
  assign embedding  = beat[EMBED_WIDTH*(32'(code_q)%32'(EMBED_CODES))+:RESIDUAL];

  always_ff @(posedge clk) begin
    token_out_last <= sent_q == new_tokens - 16'd1;  // both are stable before SEND
    word_now_q <= rom[pc_q < PC_WIDTH'(INSTRUCTIONS) ? pc_q : '0];
    if (state_q == LOAD) now_q <= word_now_q;
    has_codes_q <= now_q.op == EMBED || now_q.op == NORM;  // one cycle after now_q, as below
    is_blocks_q <= now_q.op == MATRIX || now_q.op == SCORES || now_q.op == VALUES;
    case (state_q)
      IDLE: if (starts) state_q <= FETCH;
      FETCH: state_q <= LOAD;
      LOAD: state_q <= BEGIN;
      BEGIN: begin
        state_q      <= now_q.op == NORM ? ROOT : RUN;
        tail_q       <= '0;
        code_q       <= '0;
        beats_left_q <= now_q.op == SCORES || now_q.op == VALUES ? cache_beats_q : now_q.beats;
        if (is_over) begin
          state_q    <= needs_logits_q ? SEND : IDLE;
          position_q <= position_q + 1'b1;
        end
      end
      ROOT: begin
        tail_q <= tail_q + 1'b1;
        if (tail_q == 12'(ROOT_WAIT - 1)) begin
          state_q <= RUN;
          tail_q  <= '0;
        end
      end
      RUN: begin
        if (beat_valid && has_codes_q) code_q <= code_last ? '0 : code_q + 1'b1;
        if (pop) begin
          beats_left_q <= beats_left_q - 1'b1;
          if (beats_left_q == BEAT_ADDRESS'(1)) state_q <= TAIL;
        end
      end
      TAIL: begin
        tail_q <= tail_q + 1'b1;
        if (ends) begin
          state_q <= FETCH;
          pc_q    <= pc_q + 1'b1;
        end
      end
      SEND: begin
        if (token_out_ready) begin
          state_q         <= restarts ? FETCH : IDLE;
          sent_q          <= restarts ? sent_q + 1'b1 : '0;
          is_generating_q <= restarts;
          if (restarts) token_q <= best_token_q;
          else position_q <= '0;
        end
      end
      default: state_q <= IDLE;
    endcase
    if (starts) pc_q <= '0;
    if (token_in_valid && token_in_ready) begin
      token_q         <= token_in;
      needs_logits_q  <= token_in_last;
      is_generating_q <= token_in_last;
    end
    if (rst) begin
      state_q         <= IDLE;
      position_q      <= '0;
      sent_q          <= '0;
      is_generating_q <= 1'b0;
    end
  end

  // -- blocks: headers, rows and the words of the vector ------------------------------------------

  logic [DATA_WIDTH-1:0] exponents_q;
  logic is_header_q, is_wide_q, header, data, block_end, group_end, row_end, row_first_q;
  logic [7:0] group_block_q, group_last_q;
  logic [9:0] row_block_q, row_last_q;
  logic [7:0] block_beat_q;
  logic [WORD_INDEX-1:0] word_q;
  logic [BLOCK_INDEX-1:0] vector_block_q;
  logic half_q, word_end, has_headers_q;
  logic [3:0] beat_exponent;

  assign header    = pop && is_blocks_q && is_header_q;
  assign data      = pop && is_blocks_q && !is_header_q;
  assign block_end = block_beat_q == 8'((is_wide_q ? WIDE_BLOCK_BEATS : BLOCK_BEATS) - 1);
  assign group_end = block_end && has_headers_q && group_block_q == group_last_q;
  assign row_end   = block_end && row_block_q == row_last_q;
  assign word_end  = !is_wide_q || LANES == WIDE_LANES || half_q;
  assign beat_exponent = exponents_q[8*group_block_q+:4];

  always_ff @(posedge clk) begin
    is_wide_q     <= (now_q.op == MATRIX ? WEIGHT_WIDTH : CACHE_WIDTH) != LANE_WIDTH;
    has_headers_q <= now_q.group != '0;  // without them the matrix is in fixed point
    group_last_q  <= now_q.group - 8'd1;
    row_last_q    <= now_q.row_blocks - 10'd1;
    if (header) begin
      exponents_q   <= beat;
      is_header_q   <= 1'b0;
      group_block_q <= '0;
    end
    if (data) begin
      block_beat_q <= block_end ? '0 : block_beat_q + 1'b1;
      half_q       <= !half_q;
      row_first_q  <= row_end;
      if (word_end) word_q <= word_q + 1'b1;
      if (block_end) begin
        group_block_q  <= group_block_q + 8'(has_headers_q);
        row_block_q    <= row_block_q + 1'b1;
        vector_block_q <= vector_block_q + 1'b1;
      end
      if (group_end) is_header_q <= 1'b1;
    end
    if (begins || (data && row_end)) begin
      row_block_q    <= '0;
      word_q         <= WORD_INDEX'(now_q.offset);
      vector_block_q <= BLOCK_INDEX'(now_q.offset / 12'(BLOCK_BEATS));
      half_q         <= 1'b0;
    end
    if (begins) begin
      is_header_q   <= now_q.group != '0;
      exponents_q   <= '1;  // of fixed point: TOP_EXPONENT of `block_codes.py`
      group_block_q <= '0;
      block_beat_q  <= '0;
      row_first_q   <= 1'b1;
    end
  end

  logic [LANES*8-1:0] vectors[2*(1<<WORD_INDEX)];
  logic [3:0] vector_exponents[2*(1<<BLOCK_INDEX)];
  logic [LANES*8-1:0] lanes_q;
  logic [3:0] lanes_exponent_q;

  always_ff @(posedge clk) begin
    lanes_q          <= vectors[{now_q.source, word_q}];
    lanes_exponent_q <= vector_exponents[{now_q.source, vector_block_q}];
  end

  logic signed [15:0] element;
  logic signed [RESIDUAL-1:0] element_wide;
  logic element_odd, element_valid;

  block_dot #(
      .DATA_WIDTH  (DATA_WIDTH),
      .WEIGHT_WIDTH(LANE_WIDTH),
      .RESIDUAL    (RESIDUAL)
  ) u_dot (
      .clk           (clk),
      .rst           (rst),
      .beat          (beat),
      .beat_valid    (data && now_q.op != VALUES),
      .beat_first    (row_first_q),
      .beat_last     (row_end),
      .beat_exponent (beat_exponent),
      .is_wide       (is_wide_q),
      .half          (half_q),
      .lanes         (lanes_q),
      .lanes_exponent(lanes_exponent_q),
      .shift_even    (now_q.shift_0),
      .shift_odd     (now_q.shift_1),
      .restart       (begins),
      .element       (element),
      .element_wide  (element_wide),
      .element_odd   (element_odd),
      .element_valid (element_valid)
  );

  // -- rotary embedding and gate ------------------------------------------------------------------

  localparam int PAIRS = HEAD_DIM / 2;
  localparam int PAIR_INDEX = $clog2(PAIRS);
  localparam int BEAT_PAIRS = DATA_WIDTH / 32;
  localparam int ROTATION_INDEX = ROTATION_BEATS > 1 ? $clog2(ROTATION_BEATS) : 1;

  logic [DATA_WIDTH-1:0] rotations[1<<ROTATION_INDEX];
  logic [DATA_WIDTH-1:0] rotation_beat;
  logic [ROTATION_INDEX-1:0] rotation_q;
  logic [PAIR_INDEX-1:0] pair_q;
  logic signed [15:0] cos, sin, rotated, gated;
  logic rotated_valid, gated_valid, rotator_busy, gate_busy;

  assign rotation_beat = rotations[ROTATION_INDEX'(16'(pair_q) / 16'(BEAT_PAIRS))];
  assign cos = rotation_beat[32*(16'(pair_q) % 16'(BEAT_PAIRS))+:16];
  assign sin = rotation_beat[32*(16'(pair_q) % 16'(BEAT_PAIRS))+16+:16];

  always_ff @(posedge clk) begin
    if (pop && now_q.op == ROTATION) begin
      rotations[rotation_q] <= beat;
      rotation_q            <= rotation_q + 1'b1;
    end
    if (element_valid && element_odd) begin
      pair_q <= pair_q == PAIR_INDEX'(PAIRS - 1) ? '0 : pair_q + 1'b1;
    end
    if (begins) begin
      rotation_q <= '0;
      pair_q     <= '0;
    end
  end

  pair_rotator u_rotator (
      .clk          (clk),
      .rst          (rst),
      .element      (element),
      .element_odd  (element_odd),
      .element_valid(element_valid && now_q.rotate),
      .cos          (cos),
      .sin          (sin),
      .rotated      (rotated),
      .rotated_valid(rotated_valid),
      .is_busy      (rotator_busy)
  );

  silu_gate #(
      .LOW_BITS   (SILU_LOW_BITS),
      .BASE_WIDTH (SILU_BASE_WIDTH),
      .SLOPE_WIDTH(SILU_SLOPE_WIDTH),
      .LINE_FILE  (SILU_FILE)
  ) u_gate (
      .clk          (clk),
      .rst          (rst),
      .element      (element),
      .element_odd  (element_odd),
      .element_valid(element_valid && now_q.gated),
      .shift        (now_q.shift_2),
      .gated        (gated),
      .gated_valid  (gated_valid),
      .is_busy      (gate_busy)
  );

  // -- residual stream and norm -------------------------------------------------------------------

  localparam int SQUARE_DELAY = 3;  // cycles of `wide_product`
  localparam int ROOT_WIDTH = 20 + HIDDEN_INDEX + 1;
  localparam int RAISED = GUARD > 0 ? GUARD : 0;
  localparam int DROPPED = GUARD < 0 ? -GUARD : 0;

  logic signed [RESIDUAL-1:0] hidden[HIDDEN];
  logic signed [RESIDUAL-1:0] hidden_q, hidden_2_q, add_1_q, add_2_q, hidden_write, written_3_q;
  logic signed [RESIDUAL:0] added;
  logic [HIDDEN_INDEX-1:0] index_q, index_1_q, index_2_q, index_3_q;
  logic is_code, is_add, is_embedding_q, writes_1_q, writes_2_q, writes_3_q, first_3_q;
  logic [SQUARE_DELAY-1:0] squared_q, first_q;
  logic signed [2*RESIDUAL-1:0] square;
  logic [61:0] squares_q;

  assign is_code      = state_q == RUN && beat_valid && has_codes_q;
  assign is_add       = element_valid && now_q.op == MATRIX && now_q.to == TO_HIDDEN;
  assign added        = (RESIDUAL + 1)'(hidden_2_q) + (RESIDUAL + 1)'(add_2_q);
  assign hidden_write = is_embedding_q ? add_2_q : added[RESIDUAL] != added[RESIDUAL-1]
      ? {added[RESIDUAL], {(RESIDUAL - 1) {!added[RESIDUAL]}}} : added[RESIDUAL-1:0];

  always_ff @(posedge clk) begin
    hidden_q       <= hidden[index_q];
    hidden_2_q     <= hidden_q;
    is_embedding_q <= now_q.op == EMBED;
    add_1_q        <= is_embedding_q ? embedding : element_wide;
    add_2_q        <= add_1_q;
    writes_1_q     <= is_add || (is_code && is_embedding_q);
    writes_2_q     <= writes_1_q;
    writes_3_q     <= writes_2_q;
    index_1_q      <= index_q;
    index_2_q      <= index_1_q;
    index_3_q      <= index_2_q;
    if (is_code || is_add) index_q <= index_q + 1'b1;
    if (begins) index_q <= '0;
    written_3_q <= hidden_write;
    first_3_q   <= index_2_q == '0;
    if (writes_3_q) hidden[index_3_q] <= written_3_q;
    squared_q <= {squared_q[SQUARE_DELAY-2:0], writes_3_q};
    first_q   <= {first_q[SQUARE_DELAY-2:0], first_3_q};
    if (squared_q[SQUARE_DELAY-1]) begin
      squares_q <= (first_q[SQUARE_DELAY-1] ? '0 : squares_q) + 62'(unsigned'(square));
    end
    if (rst) begin
      writes_1_q <= 1'b0;
      writes_2_q <= 1'b0;
      writes_3_q <= 1'b0;
      squared_q  <= '0;
    end
  end

  wide_product #(
      .A_WIDTH(RESIDUAL),
      .B_WIDTH(RESIDUAL)
  ) u_square (
      .clk    (clk),
      .a      (written_3_q),
      .b      (written_3_q),
      .product(square)
  );

  localparam int SIZE_WIDTH = HIDDEN_INDEX + 2;  // bits of HIDDEN as a signed number
  localparam int WEIGHT_DELAY = 7;  // from a weight of the norm to its product
  localparam int NORM_DELAY = WEIGHT_DELAY + 3;

  logic [61:0] u_q;
  logic signed [62+SIZE_WIDTH:0] sized;  // squares times HIDDEN
  logic [19:0] root;
  logic signed [20+SIZE_WIDTH:0] sized_root;
  logic [5:0] root_place, norm_shift_q;
  logic signed [15:0] weights_q[WEIGHT_DELAY];
  logic signed [15:0] normed;
  logic signed [31:0] z_7_q;
  logic signed [RESIDUAL+ROOT_WIDTH:0] rooted_5, coarse_6_q;
  logic signed [47:0] weighted;
  logic [NORM_DELAY-1:0] norm_valid_q;
  logic normed_valid;

  wide_product #(
      .A_WIDTH(63),
      .B_WIDTH(SIZE_WIDTH)
  ) u_sized (
      .clk    (clk),
      .a      ({1'b0, squares_q >> DROPPED}),
      .b      (SIZE_WIDTH'(HIDDEN)),
      .product(sized)
  );

  inverse_root #(
      .ROOT_FILE(ROOT_FILE)
  ) u_root (
      .clk(clk),
      .u  (u_q),
      .r  (root),
      .k  (root_place)
  );

  always_ff @(posedge clk) begin
    u_q          <= (sized[61:0] << RAISED) + EPS;
    norm_shift_q <= root_place + 6'(DROPPED / 2) > 6'(RAISED / 2)
        ? root_place + 6'(DROPPED / 2) - 6'(RAISED / 2) + 6'd2 : 6'd2;
    weights_q[0] <= code;
    for (int i = 1; i < WEIGHT_DELAY; i++) weights_q[i] <= weights_q[i-1];
    coarse_6_q   <= rooted_5 >>> {norm_shift_q[5:3], 3'd0};
    z_7_q        <= 32'(coarse_6_q >>> norm_shift_q[2:0]);
    norm_valid_q <= {norm_valid_q[NORM_DELAY-2:0], is_code && !is_embedding_q};
    if (rst) norm_valid_q <= '0;
  end

  wide_product #(
      .A_WIDTH(21),
      .B_WIDTH(SIZE_WIDTH)
  ) u_sized_root (
      .clk    (clk),
      .a      ({1'b0, root}),
      .b      (SIZE_WIDTH'(HIDDEN)),
      .product(sized_root)
  );

  wide_product #(
      .A_WIDTH(RESIDUAL),
      .B_WIDTH(ROOT_WIDTH + 1)
  ) u_rooted (
      .clk    (clk),
      .a      (hidden_2_q),
      .b      (sized_root[ROOT_WIDTH:0]),
      .product(rooted_5)
  );

  wide_product #(
      .A_WIDTH(32),
      .B_WIDTH(16)
  ) u_weighted (
      .clk    (clk),
      .a      (z_7_q),
      .b      (weights_q[WEIGHT_DELAY-1]),
      .product(weighted)
  );

  shift_cast #(
      .IN_WIDTH(48)
  ) u_norm_cast (
      .clk           (clk),
      .rst           (rst),
      .data_in       (weighted),
      .shift         (now_q.shift_0),
      .data_in_valid (norm_valid_q[NORM_DELAY-1]),
      .data_out      (normed),
      .data_out_valid(normed_valid)
  );

  // -- attention ----------------------------------------------------------------------------------

  logic signed [15:0] scores[1<<SCORE_INDEX];
  logic signed [15:0] score_q, largest_q, attended;
  logic [SCORE_INDEX-1:0] row_q;
  logic has_score_q, is_score, attended_valid, values_busy;

  assign is_score = element_valid && now_q.op == SCORES;

  always_ff @(posedge clk) begin
    score_q <= scores[row_q];
    if (is_score) begin
      scores[row_q] <= element;
      has_score_q   <= 1'b1;
      if (!has_score_q || element > largest_q) largest_q <= element;
    end
    if (is_score || (header && now_q.op == VALUES)) row_q <= row_q + 1'b1;
    if (begins) row_q <= '0;
    if (begins && now_q.op == SCORES) has_score_q <= 1'b0;
  end

  weighted_values #(
      .DATA_WIDTH     (DATA_WIDTH),
      .VALUE_WIDTH    (CACHE_WIDTH),
      .HEAD_DIM       (HEAD_DIM),
      .EXP_FILE       (EXP_FILE),
      .FINE_FILE      (FINE_FILE),
      .RECIPROCAL_FILE(RECIPROCAL_FILE)
  ) u_values (
      .clk          (clk),
      .rst          (rst),
      .clear        (begins),
      .header_valid (header && now_q.op == VALUES),
      .score        (score_q),
      .largest      (largest_q),
      .beat         (beat),
      .beat_valid   (data && now_q.op == VALUES),
      .beat_exponent(beat_exponent),
      .finish       (state_q == TAIL && now_q.op == VALUES && tail_q == 12'(FINISH_WAIT)),
      .shift        (now_q.shift_0),
      .result       (attended),
      .result_valid (attended_valid),
      .is_busy      (values_busy)
  );

  // -- results: a vector, the cache, or logits ----------------------------------------------------

  logic signed [15:0] result;
  logic result_valid, is_plain, is_cache, mantissa_valid, collector_busy;
  logic signed [7:0] mantissa;
  logic [3:0] exponent;

  assign is_cache = now_q.op == MATRIX && now_q.to == TO_CACHE;
  assign is_plain = element_valid && now_q.op == MATRIX && !now_q.rotate && !now_q.gated
      && (now_q.to == TO_CACHE || now_q.to == TO_VECTOR);
  assign result_valid = rotated_valid || gated_valid || normed_valid || attended_valid || is_plain;
  assign result = rotated_valid ? rotated : gated_valid ? gated : normed_valid ? normed
      : attended_valid ? attended : element;

  block_collector #(
      .BLOCK       (BLOCK),
      .NARROW_WIDTH(CACHE_WIDTH)
  ) u_collector (
      .clk           (clk),
      .rst           (rst),
      .element       (result),
      .element_valid (result_valid),
      .is_narrow     (is_cache && CACHE_WIDTH < 8),
      .mantissa      (mantissa),
      .exponent      (exponent),
      .mantissa_valid(mantissa_valid),
      .is_busy       (collector_busy)
  );

  localparam int LANE_INDEX = $clog2(LANES);
  localparam int CACHE_INDEX = $clog2(CACHE_LANES);
  localparam int BLOCK_BITS = $clog2(BLOCK);
  localparam int ROW_INDEX = $clog2(HEAD_DIM);

  logic word_done, wide_done, row_done_q;
  logic [DATA_WIDTH-1:0] cache_word;
  logic [LANES*8-9:0] vector_word_q;  // all but the last lane
  logic [LANE_INDEX-1:0] lane_q;
  logic [WORD_INDEX-1:0] store_q;
  logic [BLOCK_BITS-1:0] block_lane_q;
  logic [BLOCK_INDEX-1:0] store_block_q;
  logic [ROW_INDEX-1:0] row_lane_q;
  logic [DATA_WIDTH-1:0] row_header_q;
  logic [BEAT_ADDRESS-1:0] row_address_q;

  assign word_done = mantissa_valid && !is_cache && lane_q == LANE_INDEX'(LANES - 1);
  assign wide_done = mantissa_valid && is_cache && (&row_lane_q[CACHE_INDEX-1:0]);

  always_ff @(posedge clk) begin
    row_done_q <= wide_done && row_lane_q == ROW_INDEX'(HEAD_DIM - 1);
    if (mantissa_valid) begin
      vector_word_q <= {mantissa, vector_word_q[LANES*8-9:8]};
      lane_q        <= lane_q + 1'b1;
      block_lane_q  <= block_lane_q + 1'b1;
      row_lane_q    <= row_lane_q == ROW_INDEX'(HEAD_DIM - 1) ? '0 : row_lane_q + 1'b1;
      row_header_q[8*(16'(row_lane_q) / 16'(BLOCK))+:8] <= 8'(exponent);
      if (!is_cache) vector_exponents[{now_q.target, store_block_q}] <= exponent;
      if (&block_lane_q) store_block_q <= store_block_q + 1'b1;
    end
    if (word_done) begin
      vectors[{now_q.target, store_q}] <= {mantissa, vector_word_q};
      store_q <= store_q + 1'b1;
    end
    if (row_done_q) row_address_q <= row_address_q + BEAT_ADDRESS'(HEAD_STRIDE);
    if (begins) begin
      lane_q        <= '0;
      block_lane_q  <= '0;
      row_lane_q    <= '0;
      row_header_q  <= '0;
      store_q       <= WORD_INDEX'(now_q.offset);
      store_block_q <= BLOCK_INDEX'(now_q.offset / 12'(BLOCK_BEATS));
      row_address_q <= now_q.write + cache_start_q;
    end
    if (rst) row_done_q <= 1'b0;
  end

  // the last mantissas of a word of the vector, without their extended signs
  for (genvar i = 0; i < CACHE_LANES; i++) begin : g_cache_lane
    localparam int LANE = LANES - CACHE_LANES + i;
    if (i == CACHE_LANES - 1) begin : g_last
      assign cache_word[i*CACHE_WIDTH+:CACHE_WIDTH] = mantissa[CACHE_WIDTH-1:0];
    end else begin : g_before
      assign cache_word[i*CACHE_WIDTH+:CACHE_WIDTH] = vector_word_q[8*LANE+:CACHE_WIDTH];
    end
  end

  cache_writer #(
      .DATA_WIDTH   (DATA_WIDTH),
      .ADDRESS_WIDTH(ADDRESS_WIDTH),
      .BEAT_ADDRESS (BEAT_ADDRESS),
      .DEPTH        (WRITE_QUEUE)
  ) u_writer (
      .clk          (clk),
      .rst          (rst),
      .word_address (row_done_q ? row_address_q
          : row_address_q + BEAT_ADDRESS'(row_lane_q >> CACHE_INDEX) + 1'b1),
      .word         (row_done_q ? row_header_q
          : cache_word),
      .word_valid   (wide_done || row_done_q),
      .is_idle      (is_written),
      .m_axi_awaddr (m_axi_awaddr),
      .m_axi_awvalid(m_axi_awvalid),
      .m_axi_awready(m_axi_awready),
      .m_axi_wdata  (m_axi_wdata),
      .m_axi_wvalid (m_axi_wvalid),
      .m_axi_wready (m_axi_wready),
      .m_axi_bvalid (m_axi_bvalid),
      .m_axi_bready (m_axi_bready)
  );

  logic signed [15:0] best_q;
  logic [TOKEN_WIDTH-1:0] candidate_q;

  assign logit       = element;
  assign logit_valid = element_valid && now_q.op == MATRIX && now_q.to == TO_LOGITS;

  always_ff @(posedge clk) begin
    if (logit_valid) begin
      candidate_q <= candidate_q + 1'b1;
      if (candidate_q == '0 || element > best_q) begin
        best_q       <= element;
        best_token_q <= candidate_q;
      end
    end
    if (begins) candidate_q <= '0;
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk) begin
    if (!rst && ends && (rotator_busy || gate_busy || values_busy || collector_busy || element_valid
        || norm_valid_q != '0 || writes_1_q || writes_2_q || writes_3_q || squared_q != '0
        || row_done_q)) begin
      $fatal(1, "decode_engine: instruction %0d ends before its last result", pc_q);
    end
  end
`endif

  wire logic unused_ok = &{1'b0, now_q.address, now_q.fence, fetched_q, rotator_busy, gate_busy,
                           values_busy, collector_busy, ROW_BLOCKS == 0, sized[62+SIZE_WIDTH:62],
                           sized_root[20+SIZE_WIDTH:ROOT_WIDTH]};

endmodule

`default_nettype wire
