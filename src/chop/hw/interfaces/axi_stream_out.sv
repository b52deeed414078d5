// Output of a design to AXI4-Stream: a beat of WIDTH bits becomes whole bytes, zeros above it.
//
// A tensor is BEATS transfers, the last one with TLAST; every byte is kept.
// Latency 1 cycle, throughput 1 transfer per cycle; all outputs are registers.
`default_nettype none

module axi_stream_out #(
    parameter int WIDTH = 8,  // bits of a beat of the design
    parameter int BYTES = 1,  // bytes of TDATA
    parameter int BEATS = 1   // transfers of one tensor
) (
    input  wire logic               aclk,
    input  wire logic               aresetn,
    input  wire logic [  WIDTH-1:0] data,
    input  wire logic               data_valid,
    output      logic               data_ready,
    output      logic [8*BYTES-1:0] m_axis_tdata,
    output      logic [  BYTES-1:0] m_axis_tkeep,
    output      logic               m_axis_tlast,
    output      logic               m_axis_tvalid,
    input  wire logic               m_axis_tready,
    output      logic               ends  // the last transfer of a tensor is taken
);

  localparam int COUNT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam logic [COUNT_WIDTH-1:0] LAST = COUNT_WIDTH'(BEATS - 1);

  logic [COUNT_WIDTH-1:0] count_q;
  logic [WIDTH-1:0] beat;
  logic is_last, sent_last;

  assign is_last      = count_q == LAST;
  assign m_axis_tdata = (8 * BYTES)'(beat);
  assign m_axis_tkeep = '1;
  assign m_axis_tlast = sent_last;
  assign ends         = m_axis_tvalid && m_axis_tready && sent_last;

  skid_buffer #(
      .DATA_WIDTH(WIDTH + 1)
  ) u_slice (
      .clk(aclk),
      .rst(!aresetn),
      .data_in_0({is_last, data}),
      .data_in_0_valid(data_valid),
      .data_in_0_ready(data_ready),
      .data_out_0({sent_last, beat}),
      .data_out_0_valid(m_axis_tvalid),
      .data_out_0_ready(m_axis_tready)
  );

  always_ff @(posedge aclk) begin
    if (data_valid && data_ready) count_q <= is_last ? '0 : count_q + 1'b1;
    if (!aresetn) count_q <= '0;
  end

endmodule

`default_nettype wire
