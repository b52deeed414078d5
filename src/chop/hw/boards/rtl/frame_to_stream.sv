// A part of a payload as AXI4-Stream: bytes OFFSET to OFFSET + TRANSFERS * BYTES - 1.
//
// Bytes are stored as they arrive, in their order. `go` streams all of them, with TLAST at every
// BEATS-th transfer. A payload that is not followed by `go` is overwritten by the next one.
// Throughput 1 transfer per cycle.
`default_nettype none

module frame_to_stream #(
    parameter int BYTES     = 1,  // bytes of TDATA
    parameter int TRANSFERS = 1,  // transfers of a payload
    parameter int BEATS     = 1,  // transfers of a tensor
    parameter int OFFSET    = 0   // first byte in the payload
) (
    input  wire logic               clk,
    input  wire logic               rst,
    input  wire logic [        7:0] payload,
    input  wire logic               payload_valid,
    input  wire logic [       15:0] payload_index,
    input  wire logic               go,
    output      logic [8*BYTES-1:0] m_axis_tdata,
    output      logic [  BYTES-1:0] m_axis_tkeep,
    output      logic               m_axis_tlast,
    output      logic               m_axis_tvalid,
    input  wire logic               m_axis_tready
);

  localparam int ADDRESS_WIDTH = TRANSFERS > 1 ? $clog2(TRANSFERS) : 1;
  localparam int BYTE_WIDTH = BYTES > 1 ? $clog2(BYTES) : 1;
  localparam int BEAT_WIDTH = BEATS > 1 ? $clog2(BEATS) : 1;
  localparam logic [16:0] FIRST = 17'(OFFSET), SIZE = 17'(TRANSFERS * BYTES);

  logic [8*BYTES-1:0] words[TRANSFERS];
  logic [8*BYTES-1:0] word_q, word;
  logic [8*BYTES+7:0] joined;
  logic [ADDRESS_WIDTH-1:0] write_q, read_q, address;
  logic [16:0] place;
  logic [BYTE_WIDTH-1:0] byte_q;
  logic [BEAT_WIDTH-1:0] beat_q;
  logic is_mine, is_first, is_word, is_streaming_q, is_read;

  assign place        = 17'(payload_index) - FIRST;  // above SIZE for a byte before this part
  assign is_first     = place == '0;
  assign is_mine      = payload_valid && place < SIZE;
  assign is_word      = is_mine && (is_first ? BYTES == 1 : byte_q == BYTE_WIDTH'(BYTES - 1));
  assign address      = is_first ? '0 : write_q;
  assign joined       = {payload, word_q};
  assign word         = joined[8*BYTES+7:8];
  assign m_axis_tkeep = '1;
  assign is_read      = is_streaming_q && (!m_axis_tvalid || m_axis_tready);

  always_ff @(posedge clk) begin
    if (is_mine) begin
      word_q <= word;
      byte_q <= is_word ? '0 : is_first ? BYTE_WIDTH'(1) : byte_q + 1'b1;
      if (is_first) write_q <= ADDRESS_WIDTH'(BYTES == 1);
      else if (is_word) write_q <= write_q + 1'b1;
    end
    if (is_word) words[address] <= word;
  end

  always_ff @(posedge clk) begin
    if (is_read) m_axis_tdata <= words[read_q];
    if (m_axis_tready) m_axis_tvalid <= 1'b0;
    if (is_read) begin
      m_axis_tvalid <= 1'b1;
      m_axis_tlast  <= beat_q == BEAT_WIDTH'(BEATS - 1);
      beat_q        <= beat_q == BEAT_WIDTH'(BEATS - 1) ? '0 : beat_q + 1'b1;
      read_q        <= read_q + 1'b1;
      if (read_q == ADDRESS_WIDTH'(TRANSFERS - 1)) is_streaming_q <= 1'b0;
    end
    if (go) begin
      is_streaming_q <= 1'b1;
      read_q         <= '0;
      beat_q         <= '0;
    end
    if (rst) begin
      is_streaming_q <= 1'b0;
      m_axis_tvalid  <= 1'b0;
    end
  end

  wire logic unused_ok = &{1'b0, joined[7:0]};  // the byte that leaves the word

endmodule

`default_nettype wire
