// AXI4 read master that fetches ranges of memory in bursts, into a queue.
//
// A burst starts only if the queue has room for all of its beats, so that read data never waits.
// Bursts do not cross a multiple of BURST beats; a burst is at most 4096 bytes.
// A range of n beats takes n cycles or more. A new range is accepted when the last burst of the
// one before has been issued. A burst is issued every third cycle at most: one cycle for its length,
// one to compare it with the room of the queue. Behind the queue are two registers, so that the
// decision to take a beat does not depend on the count of the queue in the same cycle.
`default_nettype none

module burst_reader #(
    parameter int DATA_WIDTH    = 128,  // bits of a beat, a power of two from 32 to 1024
    parameter int ADDRESS_WIDTH = 32,   // bits of a byte address
    parameter int BEAT_ADDRESS  = 28,   // bits of an address in beats
    parameter int BURST         = 16,   // beats of the longest burst, a power of two up to 256
    parameter int OUTSTANDING   = 8,    // most bursts in flight
    parameter int DEPTH         = 256   // beats of the queue, BURST or more
) (
    input  wire logic                     clk,
    input  wire logic                     rst,
    input  wire logic [ BEAT_ADDRESS-1:0] range_address,
    input  wire logic [ BEAT_ADDRESS-1:0] range_beats,
    input  wire logic                     range_valid,
    output      logic                     range_ready,
    output      logic [ADDRESS_WIDTH-1:0] m_axi_araddr,
    output      logic [              7:0] m_axi_arlen,
    output      logic                     m_axi_arvalid,
    input  wire logic                     m_axi_arready,
    input  wire logic [   DATA_WIDTH-1:0] m_axi_rdata,
    input  wire logic                     m_axi_rlast,
    input  wire logic                     m_axi_rvalid,
    output      logic                     m_axi_rready,
    output      logic [   DATA_WIDTH-1:0] data_out_0,
    output      logic                     data_out_0_valid,
    input  wire logic                     data_out_0_ready
);

`ifndef __ICARUS__  // Icarus 11 has no elaboration tasks
  if (BURST * DATA_WIDTH > 4096 * 8 || DEPTH < BURST) begin : g_refuse
    $error("burst_reader: bursts of %0d beats do not fit 4096 bytes or a queue of %0d", BURST,
           DEPTH);
  end
`endif

  localparam int COUNT_WIDTH = $clog2(DEPTH + 1);
  localparam int FLIGHT_WIDTH = $clog2(OUTSTANDING + 1);
  localparam int BYTE_BITS = $clog2(DATA_WIDTH / 8);
  localparam int BURST_BITS = $clog2(BURST);

  logic [BEAT_ADDRESS-1:0] address_q, left_q;
  logic [COUNT_WIDTH-1:0] room_q;
  logic [FLIGHT_WIDTH-1:0] flight_q;
  logic [8:0] to_boundary, length_q;
  logic is_sized_q, fits_q, issue, pop, ends, unused_ready;
  logic [DATA_WIDTH-1:0] queued;
  logic queued_valid, queued_ready;

  assign range_ready = left_q == '0;
  assign to_boundary = 9'(BURST) - 9'(address_q[BURST_BITS-1:0]);
  assign issue       = fits_q && flight_q != FLIGHT_WIDTH'(OUTSTANDING)
      && (!m_axi_arvalid || m_axi_arready);
  assign pop          = data_out_0_valid && data_out_0_ready;
  assign ends         = m_axi_rvalid && m_axi_rready && m_axi_rlast;
  assign m_axi_rready = 1'b1;  // room is reserved before a burst is issued

  always_ff @(posedge clk) begin
    if (range_valid && range_ready) begin
      address_q <= range_address;
      left_q    <= range_beats;
    end else if (issue) begin
      address_q <= address_q + BEAT_ADDRESS'(length_q);
      left_q    <= left_q - BEAT_ADDRESS'(length_q);
    end
    length_q   <= left_q < BEAT_ADDRESS'(to_boundary) ? left_q[8:0] : to_boundary;
    is_sized_q <= left_q != '0 && !issue;
    fits_q     <= is_sized_q && room_q >= COUNT_WIDTH'(length_q) && !issue;
    if (issue) begin
      m_axi_araddr <= ADDRESS_WIDTH'(address_q) << BYTE_BITS;
      m_axi_arlen  <= 8'(length_q - 9'd1);
    end
    m_axi_arvalid <= issue || (m_axi_arvalid && !m_axi_arready);
    room_q        <= room_q - (issue ? COUNT_WIDTH'(length_q) : '0) + COUNT_WIDTH'(pop);
    flight_q      <= flight_q + FLIGHT_WIDTH'(issue) - FLIGHT_WIDTH'(ends);
    if (rst) begin
      left_q        <= '0;
      is_sized_q    <= 1'b0;
      fits_q        <= 1'b0;
      m_axi_arvalid <= 1'b0;
      room_q        <= COUNT_WIDTH'(DEPTH);
      flight_q      <= '0;
    end
  end

  fifo #(
      .DATA_WIDTH(DATA_WIDTH),
      .DEPTH     (DEPTH)
  ) u_fifo (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (m_axi_rdata),
      .data_in_0_valid (m_axi_rvalid),
      .data_in_0_ready (unused_ready),
      .data_out_0      (queued),
      .data_out_0_valid(queued_valid),
      .data_out_0_ready(queued_ready)
  );

  fifo #(
      .DATA_WIDTH(DATA_WIDTH),
      .DEPTH     (2),
      .HAS_HEAD  (1'b1)
  ) u_ahead (
      .clk             (clk),
      .rst             (rst),
      .data_in_0       (queued),
      .data_in_0_valid (queued_valid),
      .data_in_0_ready (queued_ready),
      .data_out_0      (data_out_0),
      .data_out_0_valid(data_out_0_valid),
      .data_out_0_ready(data_out_0_ready)
  );

  wire logic unused_ok = &{1'b0, unused_ready};

endmodule

`default_nettype wire
