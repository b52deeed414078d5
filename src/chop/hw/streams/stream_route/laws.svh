// FIRST_BEATS beats leave by stream 0, then SECOND_BEATS by stream 1. While both sinks are ready, the
// rest of a round comes between two beats of a stream.
logic [7:0] place_q;
logic [5:0] laws;
wire logic is_fed = data_in_0_valid && data_in_0_ready;
wire logic is_second = 32'(place_q) >= FIRST_BEATS;
assign broken = laws[5:3] | laws[2:0];

always_ff @(posedge clk) begin
  if (is_fed) place_q <= 32'(place_q) == FIRST_BEATS + SECOND_BEATS - 1 ? '0 : place_q + 1'b1;
  if (rst) place_q <= '0;
end

for (genvar k = 0; k < 2; k++) begin : g_stream
  logic [WIDTH-1:0] head;
  stream_laws #(
      .WIDTH(WIDTH), .SLOTS(2), .GAP((k == 0 ? SECOND_BEATS : FIRST_BEATS) + 1)
  ) u_laws (
      .*, .push(is_fed && is_second == (k == 1)), .due(head), .data(data_out_0[k*WIDTH+:WIDTH]),
      .valid(data_out_0_valid[k]), .ready(data_out_0_ready[k]), .broken(laws[k*3+:3])
  );
end
