// A part of a payload from AXI4-Stream: bytes OFFSET to OFFSET + TRANSFERS * BYTES - 1.
//
// TRANSFERS transfers are stored; then `is_full` is high and no more are taken until `clear`.
// `payload` is the byte at `payload_index` if it is in this part, and `payload_before` otherwise, so
// that the parts form a chain. Bytes are read in their order: `payload_taken` is high for one cycle
// when the byte at `payload_index` was taken.
`default_nettype none

module stream_to_frame #(
    parameter int BYTES     = 1,  // bytes of TDATA
    parameter int TRANSFERS = 1,  // transfers of a payload
    parameter int OFFSET    = 0   // first byte in the payload
) (
    input  wire logic               clk,
    input  wire logic               rst,
    input  wire logic [8*BYTES-1:0] s_axis_tdata,
    input  wire logic               s_axis_tvalid,
    output      logic               s_axis_tready,
    input  wire logic               is_full_before,
    output      logic               is_full,         // this part and those before are there
    input  wire logic               clear,
    input  wire logic               payload_taken,
    input  wire logic [       15:0] payload_index,
    input  wire logic [        7:0] payload_before,
    output      logic [        7:0] payload
);

  localparam int ADDRESS_WIDTH = TRANSFERS > 1 ? $clog2(TRANSFERS) : 1;
  localparam int BYTE_WIDTH = BYTES > 1 ? $clog2(BYTES) : 1;
  localparam logic [16:0] FIRST = 17'(OFFSET), SIZE = 17'(TRANSFERS * BYTES);

  logic [8*BYTES-1:0] words[TRANSFERS];
  logic [8*BYTES-1:0] word_q;
  logic [ADDRESS_WIDTH-1:0] write_q, read_q;
  logic [16:0] place;
  logic [BYTE_WIDTH-1:0] byte_q;
  logic is_mine, is_full_q, is_written, is_word_end;

  assign place         = 17'(payload_index) - FIRST;  // above SIZE for a byte before this part
  assign is_mine       = place < SIZE;
  assign payload       = is_mine ? word_q[8*byte_q+:8] : payload_before;
  assign is_full       = is_full_q && is_full_before;
  assign s_axis_tready = !is_full_q;
  assign is_written    = s_axis_tvalid && s_axis_tready;
  assign is_word_end   = byte_q == BYTE_WIDTH'(BYTES - 1);

  always_ff @(posedge clk) begin
    if (is_written) words[write_q] <= s_axis_tdata;
    word_q <= words[read_q];
  end

  always_ff @(posedge clk) begin
    if (is_written) begin
      write_q <= write_q + 1'b1;
      if (write_q == ADDRESS_WIDTH'(TRANSFERS - 1)) is_full_q <= 1'b1;
    end
    if (payload_taken && is_mine) begin
      byte_q <= is_word_end ? '0 : byte_q + 1'b1;
      if (is_word_end) read_q <= read_q + 1'b1;
    end
    if (clear || rst) begin
      write_q   <= '0;
      read_q    <= '0;
      byte_q    <= '0;
      is_full_q <= 1'b0;
    end
  end

endmodule

`default_nettype wire
