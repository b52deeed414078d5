// AXI4 write master: one burst of one beat for each word of the cache.
// The queue holds the words of a whole layer, so that the engine never waits for it.
`default_nettype none

module cache_writer #(
    parameter int DATA_WIDTH    = 128,  // bits of a beat
    parameter int ADDRESS_WIDTH = 32,   // bits of a byte address
    parameter int BEAT_ADDRESS  = 28,   // bits of an address in beats
    parameter int DEPTH         = 32    // words of the queue
) (
    input  wire logic                     clk,
    input  wire logic                     rst,
    input  wire logic [ BEAT_ADDRESS-1:0] word_address,
    input  wire logic [   DATA_WIDTH-1:0] word,
    input  wire logic                     word_valid,
    output      logic                     is_idle,  // all words are in memory
    output      logic [ADDRESS_WIDTH-1:0] m_axi_awaddr,
    output      logic                     m_axi_awvalid,
    input  wire logic                     m_axi_awready,
    output      logic [   DATA_WIDTH-1:0] m_axi_wdata,
    output      logic                     m_axi_wvalid,
    input  wire logic                     m_axi_wready,
    input  wire logic                     m_axi_bvalid,
    output      logic                     m_axi_bready
);

  localparam int BYTE_BITS = $clog2(DATA_WIDTH / 8);
  localparam int COUNT_WIDTH = $clog2(DEPTH + 1) + 1;

  logic [COUNT_WIDTH-1:0] open_q;  // words that are not yet in memory
  logic [BEAT_ADDRESS-1:0] address;
  logic has_word, take, address_sent_q, data_sent_q, address_done, data_done, unused_ready;

  fifo #(
      .DATA_WIDTH(BEAT_ADDRESS + DATA_WIDTH),
      .DEPTH     (DEPTH)
  ) u_fifo (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       ({word_address, word}),
      .data_in_0_valid (word_valid),
      .data_in_0_ready (unused_ready),
      .data_out_0      ({address, m_axi_wdata}),
      .data_out_0_valid(has_word),
      .data_out_0_ready(take)
  );

  assign m_axi_awaddr  = ADDRESS_WIDTH'(address) << BYTE_BITS;
  assign m_axi_awvalid = has_word && !address_sent_q;
  assign m_axi_wvalid  = has_word && !data_sent_q;
  assign m_axi_bready  = 1'b1;
  assign address_done  = address_sent_q || (m_axi_awvalid && m_axi_awready);
  assign data_done     = data_sent_q || (m_axi_wvalid && m_axi_wready);
  assign take          = has_word && address_done && data_done;
  assign is_idle       = open_q == '0;

  always_ff @(posedge clk) begin
    address_sent_q <= has_word && address_done && !take;
    data_sent_q    <= has_word && data_done && !take;
    open_q         <= open_q + COUNT_WIDTH'(word_valid) - COUNT_WIDTH'(m_axi_bvalid);
    if (rst) begin
      address_sent_q <= 1'b0;
      data_sent_q    <= 1'b0;
      open_q         <= '0;
    end
  end

`ifndef SYNTHESIS
  always_ff @(posedge clk) begin
    if (!rst && word_valid && !unused_ready) $fatal(1, "cache_writer: the queue is too short");
  end
`endif

endmodule

`default_nettype wire
