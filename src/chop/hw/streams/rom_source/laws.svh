// The words of TABLE leave in turn, for ever; two are due at once.
localparam int SLOTS = 2;
logic [3:0] next_q, head;  // numbers of words
logic [1:0] waiting_q;
wire logic is_fed = 1'b1;
wire logic push = 32'(waiting_q) < SLOTS;
wire logic [3:0] expected = next_q;
wire logic [WIDTH-1:0] due = TABLE[32'(head)*WIDTH+:WIDTH];

always_ff @(posedge clk) begin
  if (push) next_q <= 32'(next_q) == DEPTH - 1 ? '0 : next_q + 1'b1;
  waiting_q <= waiting_q + 2'(push) - 2'(data_out_0_valid && data_out_0_ready);
  if (rst) begin
    next_q    <= '0;
    waiting_q <= '0;
  end
end

stream_laws #(.WIDTH(4), .BEAT(WIDTH), .SLOTS(SLOTS), .LATENCY(1), .GAP(1)) u_laws (.*);
