// Each write, an address and its data in any order, has one answer; so has each read. An answer stays,
// with stable data, until it is taken. A write is answered within two cycles after both parts are
// there, the answer before is taken and no piece is being written. A read is answered in the next cycle.
// Answers and values are those of a model of the words.
wire logic aclk = clk;
wire logic aresetn = !rst;
logic is_reset_q = 1'b0;
wire logic is_live = is_reset_q && !rst;

// -- a model of the words, after the table in axi_lite_registers.sv ---------------------------------

localparam int LARGEST = COUNT < 16 ? 2 ** COUNT - 1 : 65535;
localparam logic [1:0] FINE = 2'b00, WRONG = 2'b10;
logic [COUNT-1:0] inside_q, in_q, out_q, wrong_q, high_part_q;
logic [2*COUNT-1:0] busy_q;
logic [15:0] lasts_q, keeps_q;
logic runs_q;
logic [5:0] place_q;  // of a write that is open
logic [31:0] value_q;
logic [3:0] bytes_q;
logic has_place_q, has_value_q;
wire logic takes_place = s_axil_awvalid && s_axil_awready;
wire logic takes_value = s_axil_wvalid && s_axil_wready;
wire logic is_done = has_place_q && has_value_q && !load_busy && (!s_axil_bvalid || s_axil_bready);
wire logic to_control = place_q == 6'd1;
wire logic to_piece = HAS_RELOAD && place_q == 6'd9 && load_ready && bytes_q == 4'hf;
wire logic is_set = is_done && to_control && bytes_q[0];
wire logic is_cleared = is_set && value_q[1];
wire logic is_question = s_axil_arvalid && s_axil_arready;
wire logic [5:0] question = s_axil_araddr[7:2];
wire logic is_word = question <= (HAS_RELOAD ? 6'd10 : 6'd8);
wire logic [6:0] status = {
    HAS_RELOAD ? load_state : 4'b0, keep_errors != '0, last_errors != '0, inside_q != '0};
wire logic [31:0] more = question == 6'd9 ? load_count : load_crc;
wire logic [31:0] word = question == 6'd0 ? {"E", "S", "A", "M"}
    : question == 6'd1 ? 32'(runs_q)
    : question == 6'd2 ? 32'(status)
    : question == 6'd3 ? 32'(in_q)
    : question == 6'd4 ? 32'(out_q)
    : question == 6'd5 ? 32'(busy_q[COUNT-1:0])
    : question == 6'd6 ? 32'(high_part_q)
    : question == 6'd7 ? {keeps_q, lasts_q}
    : question == 6'd8 ? 32'(wrong_q)
    : HAS_RELOAD && is_word ? more : '0;

always_ff @(posedge clk) begin
  is_reset_q <= is_reset_q || rst;
  if (takes_place) place_q <= s_axil_awaddr[7:2];
  if (takes_value) value_q <= s_axil_wdata;
  if (takes_value) bytes_q <= s_axil_wstrb;
  has_place_q <= takes_place || has_place_q && !is_done;
  has_value_q <= takes_value || has_value_q && !is_done;
  if (is_set) runs_q <= value_q[0];
  inside_q <= inside_q + COUNT'(starts) - COUNT'(ends);
  in_q     <= is_cleared ? '0 : in_q + COUNT'(starts);
  out_q    <= is_cleared ? '0 : out_q + COUNT'(ends);
  busy_q   <= is_cleared ? '0 : busy_q + (2 * COUNT)'(inside_q != '0);
  wrong_q  <= is_cleared ? '0 : wrong_q + COUNT'(is_done && !to_control && !to_piece)
                                        + COUNT'(is_question && !is_word);
  lasts_q  <= is_cleared ? '0 : lasts_q + 16'(last_wrongs != '0 && 32'(lasts_q) != LARGEST);
  keeps_q  <= is_cleared ? '0 : keeps_q + 16'(keep_wrongs != '0 && 32'(keeps_q) != LARGEST);
  if (is_question && question == 6'd5) high_part_q <= busy_q[2*COUNT-1:COUNT];
  if (rst) begin
    {has_place_q, has_value_q} <= '0;
    runs_q   <= 1'b1;
    inside_q <= '0;
    in_q     <= '0;
    out_q    <= '0;
    busy_q   <= '0;
    high_part_q <= '0;
    wrong_q  <= '0;
    lasts_q  <= '0;
    keeps_q  <= '0;
  end
end

// -- the port ---------------------------------------------------------------------------------------

logic owes_write_q, owes_read_q, had_write_q, had_read_q;
logic [1:0] due_b_q, due_r_q, was_b_q, was_r_q;
logic [31:0] due_word_q, was_word_q;
wire logic b_taken = s_axil_bvalid && s_axil_bready;
wire logic r_taken = s_axil_rvalid && s_axil_rready;

always_ff @(posedge clk) begin
  owes_write_q <= is_done || owes_write_q && !b_taken;
  owes_read_q  <= is_question || owes_read_q && !r_taken;
  if (is_done) due_b_q <= to_control || to_piece ? FINE : WRONG;
  if (is_question) due_r_q <= is_word ? FINE : WRONG;
  if (is_question) due_word_q <= word;
  had_write_q <= s_axil_bvalid && !s_axil_bready;
  had_read_q  <= s_axil_rvalid && !s_axil_rready;
  {was_b_q, was_r_q, was_word_q} <= {s_axil_bresp, s_axil_rresp, s_axil_rdata};
  if (rst) {owes_write_q, owes_read_q, had_write_q, had_read_q} <= '0;
end

wire logic is_wrong_answer = s_axil_bvalid != owes_write_q || s_axil_rvalid != owes_read_q
    || s_axil_bvalid && s_axil_bresp != due_b_q
    || s_axil_rvalid && (s_axil_rresp != due_r_q || s_axil_rdata != due_word_q);
wire logic is_wrong_order = run != runs_q || design_rst != load_rst || clear != is_cleared
    || load_begin != (HAS_RELOAD && is_set && value_q[3:2] == 2'b01)
    || load_abort != (HAS_RELOAD && is_set && value_q[3])
    || load_write != (is_done && to_piece) || load_write && load_data != value_q;
wire logic is_unstable = had_write_q && !(s_axil_bvalid && s_axil_bresp == was_b_q)
    || had_read_q && !(s_axil_rvalid && {s_axil_rresp, s_axil_rdata} == {was_r_q, was_word_q});
// a channel is closed only while what it took before is open
wire logic is_stuck = s_axil_awready == has_place_q || s_axil_wready == has_value_q
    || s_axil_arready != (!s_axil_rvalid || s_axil_rready);
assign broken = {
    is_live && is_stuck, is_live && is_unstable, is_live && (is_wrong_answer || is_wrong_order)};
