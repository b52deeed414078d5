// Beats FIRST to FIRST + KEPT - 1 of each row leave, the others do not.
logic [7:0] place_q;
wire logic is_taken = data_in_0_valid && data_in_0_ready;
wire logic push = is_taken && 32'(place_q) >= FIRST && 32'(place_q) <= FIRST + KEPT - 1;

always_ff @(posedge clk) begin
  if (is_taken) place_q <= 32'(place_q) == BEATS - 1 ? '0 : place_q + 1'b1;
  if (rst) place_q <= '0;
end

stream_laws #(.WIDTH(WIDTH), .SLOTS(2), .GAP(BEATS - KEPT + 1)) u_laws (.*);
