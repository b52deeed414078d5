// Transfers are the beats in their order, with TLAST at every BEATS-th, zeros above a beat and every
// byte kept. TVALID stays, with stable data, until TREADY. `ends` marks the last one of a tensor.
wire logic aclk = clk;
wire logic aresetn = !rst;
wire logic taken = data_valid && data_ready;
logic is_reset_q = 1'b0;
logic [7:0] place_q;
logic [WIDTH:0] head;
logic [2:0] of_stream;
wire logic is_end = 32'(place_q) == BEATS - 1;
wire logic [8*BYTES-1:0] above = m_axis_tdata >> WIDTH;

always_ff @(posedge clk) begin
  is_reset_q <= is_reset_q || rst;
  if (taken) place_q <= is_end ? '0 : place_q + 1'b1;
  if (rst) place_q <= '0;
end

stream_laws #(
    .WIDTH(WIDTH + 1), .SLOTS(2)
) u_laws (
    .clk(clk), .rst(rst), .is_lawful(1'b1), .is_fed(data_valid), .is_moving(1'b1),
    .push(taken), .expected({is_end, data}), .head(head), .due(head), .ends(1'b1),
    .data({m_axis_tlast, m_axis_tdata[WIDTH-1:0]}), .valid(m_axis_tvalid), .ready(m_axis_tready),
    .broken(of_stream)
);
wire logic is_wrong = m_axis_tvalid && (above != '0 || m_axis_tkeep != '1)
    || ends != (m_axis_tvalid && m_axis_tready && m_axis_tlast);
assign broken = of_stream | {2'b0, is_reset_q && !rst && is_wrong};
