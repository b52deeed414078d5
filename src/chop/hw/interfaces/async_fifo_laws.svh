// A beat leaves as it came; at most 2**DEPTH_BITS are inside. Edges of the two clocks come in any
// order, also together. A register that samples the other side's count at an edge of both takes each
// changed bit early or late, as `mixed_*` says. Beats that are due are offered within three edges
// of the reader, and a queue with room takes a beat within three edges of the writer.
localparam int DEPTH = 2 ** DEPTH_BITS;
wire logic write_rst = rst;
wire logic read_rst = rst;
wire logic is_fed = 1'b0;
wire logic is_moving = read_edge;
wire logic ready = data_out_0_ready && read_edge;
wire logic push = data_in_0_valid && data_in_0_ready && write_edge;
logic is_reset_q = 1'b0, was_short_q = 1'b0;
wire logic is_short = rst && !(write_edge && read_edge);  // a reset lasts for edges of both
wire logic is_lawful = !was_short_q && !is_short;
logic [2:0] of_stream;
logic [DEPTH_BITS:0] inside_q;
logic [2:0] full_q;

always_ff @(posedge clk) begin
  is_reset_q  <= is_reset_q || rst;
  was_short_q <= was_short_q || is_short;
  inside_q   <= inside_q + (DEPTH_BITS + 1)'(push) - (DEPTH_BITS + 1)'(data_out_0_valid && ready);
  full_q     <= data_in_0_ready || 32'(inside_q) == DEPTH ? '0 : full_q + 3'(write_edge);
  if (rst) begin
    inside_q <= '0;
    full_q   <= '0;
  end
end

stream_laws #(.WIDTH(DATA_WIDTH), .SLOTS(DEPTH), .LATENCY(3)) u_laws (
    .clk(clk), .rst(rst), .is_lawful(is_lawful), .is_fed(is_fed), .is_moving(is_moving),
    .push(push), .expected(data_in_0), .head(head), .due(head), .ends(1'b1),
    .data(data_out_0), .valid(data_out_0_valid), .ready(ready), .broken(of_stream)
);
assign broken = of_stream | {is_reset_q && !rst && is_lawful && full_q > 3'd3, 2'b0};
