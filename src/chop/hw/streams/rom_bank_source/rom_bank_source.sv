// Streams the words of a read-only memory, for ever: BANKS sets of parameters that are switched.
// The words of a bank come in order, REPEATS times over; then those of the next one. Layers that
// share one block have a bank each, read as often as a tensor takes its words.
// Latency 1 cycle after reset, throughput 1 beat per cycle.
`default_nettype none

module rom_bank_source #(
    parameter int DATA_WIDTH = 8,          // bits of one word, 1 or more
    parameter int DEPTH      = 4,          // words of a bank, 1 or more
    parameter int BANKS      = 2,          // banks, 1 or more
    parameter int REPEATS    = 1,          // how often a bank is read before the next, 1 or more
    parameter     INIT_FILE  = "rom.mem"   // BANKS * DEPTH hexadecimal words, read by $readmemh
) (
    input  wire logic                  clk,
    input  wire logic                  rst,
    output      logic [DATA_WIDTH-1:0] data_out_0,
    output      logic                  data_out_0_valid,
    input  wire logic                  data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (DATA_WIDTH < 1 || DEPTH < 1 || BANKS < 1 || REPEATS < 1) begin : g_refuse_size
    $error("rom_bank_source: width, DEPTH, BANKS and REPEATS must be 1 or more, got %0d, %0d, %0d, %0d",
           DATA_WIDTH, DEPTH, BANKS, REPEATS);
  end
`endif

  localparam int WORDS = BANKS * DEPTH;
  localparam int ADDRESS_WIDTH = WORDS > 1 ? $clog2(WORDS) : 1;
  localparam int WORD_WIDTH = DEPTH > 1 ? $clog2(DEPTH) : 1;
  localparam int REPEAT_WIDTH = REPEATS > 1 ? $clog2(REPEATS) : 1;

  logic [DATA_WIDTH-1:0] words[WORDS];
  logic [ADDRESS_WIDTH-1:0] address_q, base_q, next;
  logic [WORD_WIDTH-1:0] word_q;
  logic [REPEAT_WIDTH-1:0] repeat_q;
  logic enable, is_last_word, is_last_repeat;

  initial $readmemh(INIT_FILE, words);

  assign enable         = data_out_0_ready || !data_out_0_valid;
  assign is_last_word   = word_q == WORD_WIDTH'(DEPTH - 1);
  assign is_last_repeat = repeat_q == REPEAT_WIDTH'(REPEATS - 1);
  assign next           = address_q == ADDRESS_WIDTH'(WORDS - 1) ? '0 : address_q + 1'b1;

  always_ff @(posedge clk) begin
    if (enable) begin
      data_out_0       <= words[address_q];
      data_out_0_valid <= 1'b1;
      word_q           <= is_last_word ? '0 : word_q + 1'b1;
      address_q        <= is_last_word && !is_last_repeat ? base_q : next;
      if (is_last_word) repeat_q <= is_last_repeat ? '0 : repeat_q + 1'b1;
      if (is_last_word && is_last_repeat) base_q <= next;
    end
    if (rst) begin
      data_out_0_valid <= 1'b0;
      address_q        <= '0;
      base_q           <= '0;
      word_q           <= '0;
      repeat_q         <= '0;
    end
  end

endmodule

`default_nettype wire
