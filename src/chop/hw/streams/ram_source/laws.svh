// The words leave in turn, for ever: those of TABLE, or what was written while `rst` was high. A
// bank is read REPEATS times before the next. Two words are due at once.
localparam int SLOTS = 2;
localparam int WORDS = BANKS * DEPTH;
localparam int PIECES = (WIDTH + PIECE_BITS - 1) / PIECE_BITS;
logic [WORDS*PIECES*PIECE_BITS-1:0] written_q = START;
logic [PIECES*PIECE_BITS-1:0] begun_q, whole;  // pieces of a word
logic [3:0] word_q, bank_q, repeat_q, head;
logic [1:0] waiting_q;
logic [INDEX_WIDTH-1:0] index_q;
logic is_broken_q = 1'b0, is_inside_q = 1'b0, has_begun_q = 1'b0;
wire logic [31:0] number = 32'(load_index) - FIRST;
wire logic is_mine = load_valid && 32'(load_index) >= FIRST && number < WORDS * PIECES;
wire logic is_whole = number % PIECES == PIECES - 1;
// pieces come in order and while `rst` is high; a word that was begun is written whole
// or its memory from the start
wire logic is_wrong = load_valid && !rst || !rst && is_inside_q
    || is_mine && number != 0 
        && !(has_begun_q && 32'(load_index) == 32'(index_q) + 1);
wire logic is_lawful = !is_broken_q && !is_wrong;
always_comb begin
  whole = begun_q;
  whole[number%PIECES*PIECE_BITS+:PIECE_BITS] = load_word;
end
wire logic push = 32'(waiting_q) < SLOTS;
wire logic [3:0] expected = 4'(32'(bank_q) * DEPTH + 32'(word_q));
wire logic [WIDTH-1:0] due = written_q[32'(head)*PIECES*PIECE_BITS+:WIDTH];
wire logic is_last_word = 32'(word_q) == DEPTH - 1;
wire logic is_last_time = 32'(repeat_q) == REPEATS - 1;

always_ff @(posedge clk) begin
  if (is_wrong) is_broken_q <= 1'b1;
  if (is_mine) begin
    begun_q <= whole;
    if (is_whole) written_q[number/PIECES*PIECES*PIECE_BITS+:PIECES*PIECE_BITS] <= whole;
    has_begun_q <= has_begun_q || number == 0;
    is_inside_q <= !is_whole;
    index_q     <= load_index;
  end
  if (push) begin
    word_q <= is_last_word ? '0 : word_q + 1'b1;
    if (is_last_word) repeat_q <= is_last_time ? '0 : repeat_q + 1'b1;
    if (is_last_word && is_last_time) bank_q <= 32'(bank_q) == BANKS - 1 ? '0 : bank_q + 1'b1;
  end
  waiting_q <= waiting_q + 2'(push) - 2'(data_out_0_valid && data_out_0_ready);
  if (rst) begin
    word_q    <= '0;
    bank_q    <= '0;
    repeat_q  <= '0;
    waiting_q <= '0;
  end
end

wire logic is_fed = 1'b1;
stream_laws #(.WIDTH(4), .BEAT(WIDTH), .SLOTS(SLOTS), .LATENCY(1), .GAP(1)) u_laws (.*);
