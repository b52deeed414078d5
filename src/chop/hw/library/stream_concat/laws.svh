// Blocks of both streams leave in turn. Nothing is taken of the stream that does not have its turn.
logic is_one;
logic [7:0] place_q;  // of the next beat in a block of both
logic [2:0] laws;
logic is_reset_q = 1'b0;
wire logic [1:0] each = {data_in_1_valid && data_in_1_ready, data_in_0_valid && data_in_0_ready};
wire logic push = |each;
wire logic is_fed = is_one ? data_in_1_valid : data_in_0_valid;
wire logic [WIDTH-1:0] expected = is_one ? data_in_1 : data_in_0;

assign is_one = IS_SWAPPED ? 32'(place_q) < IN_1_BEATS : 32'(place_q) >= IN_BEATS;
assign broken = laws | {2'b0, is_reset_q && !rst && each[!is_one]};

always_ff @(posedge clk) begin
  is_reset_q <= is_reset_q || rst;
  if (push) place_q <= 32'(place_q) == IN_BEATS + IN_1_BEATS - 1 ? '0 : place_q + 1'b1;
  if (rst) place_q <= '0;
end

stream_laws #(.WIDTH(WIDTH), .SLOTS(2), .GAP(1)) u_laws (.*, .broken(laws));
