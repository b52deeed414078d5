// Beats are the transfers in their order; none is taken while `run` is 0. An error bit is set by a
// transfer that breaks the rule of TLAST or TKEEP, and by nothing else, until `clear`.
wire logic aclk = clk;
wire logic aresetn = !rst;
wire logic moved = s_axis_tvalid && s_axis_tready;
logic is_reset_q = 1'b0;
logic [7:0] place_q;
logic [WIDTH-1:0] head;
logic [2:0] of_stream;
logic last_wrong_q, keep_wrong_q;
wire logic is_end = 32'(place_q) == BEATS - 1;
wire logic is_live = is_reset_q && !rst;
wire logic is_wrong = s_axis_tready && !run || starts != (moved && place_q == '0)
    || between != (place_q == '0)
    || last_wrong != (moved && s_axis_tlast != is_end) || keep_wrong != (moved && !(&s_axis_tkeep))
    || last_error_q != last_wrong_q || keep_error_q != keep_wrong_q;

always_ff @(posedge clk) begin
  is_reset_q <= is_reset_q || rst;
  if (moved) place_q <= is_end ? '0 : place_q + 1'b1;
  last_wrong_q <= moved && s_axis_tlast != is_end || last_wrong_q && !clear;
  keep_wrong_q <= moved && !(&s_axis_tkeep) || keep_wrong_q && !clear;
  if (rst) begin
    place_q      <= '0;
    last_wrong_q <= 1'b0;
    keep_wrong_q <= 1'b0;
  end
end

stream_laws #(
    .WIDTH(WIDTH), .SLOTS(2)
) u_laws (
    .clk(clk), .rst(rst), .is_lawful(1'b1), .is_fed(s_axis_tvalid && run), .is_moving(1'b1),
    .push(moved), .expected(s_axis_tdata[WIDTH-1:0]), .head(head), .due(head), .ends(1'b1),
    .data(data), .valid(data_valid), .ready(data_ready),
    .broken(of_stream)
);
assign broken = of_stream | {2'b0, is_live && is_wrong};
