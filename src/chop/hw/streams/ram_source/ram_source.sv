// Streams the words of a memory in order, for ever: parameters that can be written at run time.
// BANKS sets of DEPTH words come in turn, each REPEATS times over, as in rom_bank_source.
// Latency 1 cycle after reset, throughput 1 beat per cycle.
//
// Words are written in pieces of PIECE_BITS bits, the low piece first. Piece number FIRST is the first
// of word 0 and starts again from there; the pieces behind it follow in order.
// Hold `rst` from the first piece on until the last one is written, and for one more cycle.
`default_nettype none

module ram_source #(
    parameter int DATA_WIDTH  = 8,         // bits of one word, 1 or more
    parameter int DEPTH       = 4,         // words of a bank, 1 or more
    parameter int BANKS       = 1,         // banks, 1 or more
    parameter int REPEATS     = 1,         // how often a bank is read before the next, 1 or more
    parameter int INDEX_WIDTH = 8,         // bits of the number of a piece, 1 or more
    parameter int FIRST       = 0,         // number of the first piece of this memory
    parameter int PIECE_BITS  = 32,        // bits of a piece, 1 or more
    parameter     INIT_FILE   = "ram.mem"  // BANKS * DEPTH hexadecimal words, read by $readmemh
) (
    input  wire logic                   clk,
    input  wire logic                   rst,
    input  wire logic                   load_valid,
    input  wire logic [INDEX_WIDTH-1:0] load_index,
    input  wire logic [ PIECE_BITS-1:0] load_word,
    output      logic [ DATA_WIDTH-1:0] data_out_0,
    output      logic                   data_out_0_valid,
    input  wire logic                   data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || DEPTH < 1 || BANKS < 1 || REPEATS < 1 || PIECE_BITS < 1) begin : g_refuse_size
    $error("ram_source: width, DEPTH, BANKS, REPEATS, PIECE_BITS are %0d, %0d, %0d, %0d, %0d, not 1 or more",
           DATA_WIDTH, DEPTH, BANKS, REPEATS, PIECE_BITS);
  end
`endif

  localparam int WORDS = BANKS * DEPTH;
  localparam int ADDRESS_WIDTH = WORDS > 1 ? $clog2(WORDS) : 1;
  localparam int PIECES = (DATA_WIDTH + PIECE_BITS - 1) / PIECE_BITS;
  localparam int PIECE_WIDTH = PIECES > 1 ? $clog2(PIECES) : 1;

  (* no_rw_check *)  // nothing is read while a word is written
  logic [DATA_WIDTH-1:0] words[WORDS];
  logic [ADDRESS_WIDTH-1:0] address_q, next;
  logic enable;

  initial $readmemh(INIT_FILE, words);

  assign enable = data_out_0_ready || !data_out_0_valid;

  // -- reading -------------------------------------------------------------------------------

  always_ff @(posedge clk) begin
    if (enable) begin
      data_out_0       <= words[address_q];
      data_out_0_valid <= 1'b1;
      address_q        <= next;
    end
    if (rst) begin
      data_out_0_valid <= 1'b0;
      address_q        <= '0;
    end
  end

  if (BANKS > 1) begin : g_banks
    localparam int WORD_WIDTH = DEPTH > 1 ? $clog2(DEPTH) : 1;
    localparam int REPEAT_WIDTH = REPEATS > 1 ? $clog2(REPEATS) : 1;

    logic [ADDRESS_WIDTH-1:0] base_q, behind;
    logic [WORD_WIDTH-1:0] word_q;
    logic [REPEAT_WIDTH-1:0] repeat_q;
    logic is_last_word, is_last_repeat;

    assign is_last_word   = word_q == WORD_WIDTH'(DEPTH - 1);
    assign is_last_repeat = repeat_q == REPEAT_WIDTH'(REPEATS - 1);
    assign behind         = address_q == ADDRESS_WIDTH'(WORDS - 1) ? '0 : address_q + 1'b1;
    assign next           = is_last_word && !is_last_repeat ? base_q : behind;

    always_ff @(posedge clk) begin
      if (enable) begin
        word_q <= is_last_word ? '0 : word_q + 1'b1;
        if (is_last_word) repeat_q <= is_last_repeat ? '0 : repeat_q + 1'b1;
        if (is_last_word && is_last_repeat) base_q <= behind;
      end
      if (rst) begin
        base_q   <= '0;
        word_q   <= '0;
        repeat_q <= '0;
      end
    end
  end else begin : g_one_bank
    assign next = address_q == ADDRESS_WIDTH'(WORDS - 1) ? '0 : address_q + 1'b1;
  end

  // -- writing -------------------------------------------------------------------------------

  logic [ADDRESS_WIDTH-1:0] place_q, place;
  logic [PIECE_WIDTH-1:0] piece_q, piece;
  logic [PIECE_BITS*PIECES-1:0] whole;
  logic [31:0] number;
  logic is_mine, is_first, is_last_piece;

  assign is_first      = number == '0;
  assign number        = 32'(load_index) - 32'(FIRST);  // large for pieces before FIRST
  assign is_mine       = load_valid && number < 32'(WORDS * PIECES);
  assign place         = is_first ? '0 : place_q;
  assign piece         = is_first ? '0 : piece_q;
  assign is_last_piece = piece == PIECE_WIDTH'(PIECES - 1);

  if (PIECES > 1) begin : g_pieces
    logic [PIECE_BITS*(PIECES-1)-1:0] low_q;

    assign whole = {load_word, low_q};

    always_ff @(posedge clk) if (is_mine) low_q <= whole[PIECE_BITS*PIECES-1:PIECE_BITS];
  end else begin : g_one_piece
    assign whole = load_word;
  end

  if (PIECE_BITS * PIECES > DATA_WIDTH) begin : g_above
    wire logic unused_ok = &{1'b0, whole[PIECE_BITS*PIECES-1:DATA_WIDTH]};
  end

  always_ff @(posedge clk) begin
    if (is_mine) begin
      piece_q <= is_last_piece ? '0 : piece + 1'b1;
      if (is_last_piece) begin
        place_q      <= place + 1'b1;
        words[place] <= whole[DATA_WIDTH-1:0];
      end else begin
        place_q <= place;
      end
    end
  end

endmodule

`default_nettype wire
