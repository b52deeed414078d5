// Replies to the host, as bytes: 5a a5, status, number, length (2 bytes), payload, CRC-32.
//
// `start` takes status and number; a result has LENGTH bytes of payload, an identity has 8 (ID and
// the cycles of the last inference) and any other status has none. The bytes of a result come from
// outside: `payload` is the byte at `payload_index`, 4 cycles after the index has changed or later.
`default_nettype none

module frame_sender #(
    parameter int          LENGTH = 1,  // bytes of the payload of a result, 1 to 65535
    parameter logic [31:0] ID     = '0  // identity of the design
) (
    input  wire logic        clk,
    input  wire logic        rst,
    input  wire logic        start,
    input  wire logic [ 7:0] status,
    input  wire logic [ 7:0] number,
    input  wire logic [31:0] cycles,
    output      logic        is_busy,
    output      logic        payload_taken,  // the byte at `payload_index` is taken
    output      logic [15:0] payload_index,
    input  wire logic [ 7:0] payload,
    output      logic [ 7:0] data,
    output      logic        data_valid,
    input  wire logic        data_ready
);

  localparam logic [7:0] IDENTITY = 8'h80, RESULT = 8'h81;
  localparam logic [1:0] IDLE = 2'd0, HEADER = 2'd1, PAYLOAD = 2'd2, CHECK = 2'd3;

  logic [1:0] state_q;
  logic [15:0] index_q, length_q, length;
  logic [31:0] crc_q, crc, checksum;
  logic [47:0] header;
  logic [63:0] identity;
  logic [7:0] status_q, number_q, next;
  logic [2:0] settle_q;  // cycles until `next` is the byte at `index_q`
  logic is_sent;

  assign is_busy       = state_q != IDLE;
  assign header        = {length_q, number_q, status_q, 16'ha55a};
  assign identity      = {cycles, ID};
  assign checksum      = ~crc_q;
  assign data          = next;
  assign data_valid    = is_busy && settle_q == '0;
  assign is_sent       = data_valid && data_ready;
  assign payload_index = index_q;
  assign payload_taken = is_sent && state_q == PAYLOAD && status_q == RESULT;

  always_comb begin
    case (status)
      RESULT:   length = 16'(LENGTH);
      IDENTITY: length = 16'd8;
      default:  length = '0;
    endcase
  end

  always_comb begin
    case (state_q)
      HEADER:  next = header[8*index_q[2:0]+:8];
      CHECK:   next = checksum[8*index_q[1:0]+:8];
      default: next = status_q == RESULT ? payload : identity[8*index_q[2:0]+:8];
    endcase
  end

  crc32_byte u_crc (
      .crc (crc_q),
      .data(next),
      .next(crc)
  );

  always_ff @(posedge clk) begin
    if (settle_q != '0) settle_q <= settle_q - 3'd1;
    if (state_q == IDLE) begin
      index_q <= '0;
      crc_q   <= '1;
      if (start) begin
        state_q  <= HEADER;
        status_q <= status;
        number_q <= number;
        length_q <= length;
        settle_q <= '0;
      end
    end else if (is_sent) begin
      settle_q <= 3'd4;
      index_q  <= index_q + 16'd1;
      if (state_q == PAYLOAD || (state_q == HEADER && index_q > 16'd1)) crc_q <= crc;
      if (state_q == HEADER && index_q == 16'd5) begin
        state_q <= length_q == '0 ? CHECK : PAYLOAD;
        index_q <= '0;
      end else if (state_q == PAYLOAD && index_q + 16'd1 == length_q) begin
        state_q <= CHECK;
        index_q <= '0;
      end else if (state_q == CHECK && index_q == 16'd3) begin
        state_q <= IDLE;
      end
    end
    if (rst) state_q <= IDLE;
  end

endmodule

`default_nettype wire
