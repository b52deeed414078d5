// Requests of the host, from bytes: 5a a5, kind, number, length (2 bytes), payload, CRC-32.
//
// Kind 0 asks for the identity and has no payload; kind 1 asks for an inference and has LENGTH bytes.
// The CRC covers kind to payload; numbers are sent the lowest byte first. The bytes of a payload are
// passed on as they arrive. At the end either `accept` or `refuse` is high for one cycle: `refuse`
// comes for a wrong CRC, for a kind or length that is not allowed, and for a request whose next byte
// does not arrive within TIMEOUT cycles. After that the receiver waits for the next 5a a5.
// While `enable` is 0, bytes are dropped.
`default_nettype none

module frame_receiver #(
    parameter int LENGTH  = 1,      // bytes of the payload of an inference, 1 to 65535
    parameter int TIMEOUT = 500000  // cycles to wait for a byte inside a request
) (
    input  wire logic        clk,
    input  wire logic        rst,
    input  wire logic        enable,
    input  wire logic [ 7:0] data,
    input  wire logic        data_valid,
    output      logic        payload_valid,  // `data` is a byte of the payload
    output      logic [15:0] payload_index,
    output      logic        accept,
    output      logic        refuse,
    output      logic [ 7:0] status,         // why the request is refused
    output      logic        is_inference,
    output      logic [ 7:0] number
);

  localparam logic [31:0] RESIDUE = 32'hdebb20e3;
  localparam logic [7:0] DAMAGED = 8'he1, UNKNOWN = 8'he2, CUT_SHORT = 8'he3;
  localparam int WAIT_WIDTH = $clog2(TIMEOUT + 1);
  localparam logic [2:0] HUNT = 3'd0, SECOND = 3'd1, KIND = 3'd2, NUMBER = 3'd3, LOW = 3'd4,
                         HIGH = 3'd5, PAYLOAD = 3'd6, CHECK = 3'd7;

  logic [2:0] state_q;
  logic [15:0] index_q, length_q;
  logic [31:0] crc_q, crc;
  logic [WAIT_WIDTH-1:0] wait_q;
  logic [7:0] kind_q;
  logic [15:0] length;
  logic is_byte, is_allowed, is_late, is_last_check, is_right;

  assign is_byte       = data_valid && enable;
  assign length        = {data, length_q[7:0]};
  assign is_allowed    = kind_q == 8'd1 ? length == 16'(LENGTH) : kind_q == 8'd0 && length == '0;
  assign is_late       = state_q > SECOND && wait_q == WAIT_WIDTH'(TIMEOUT);
  assign payload_valid = is_byte && state_q == PAYLOAD;
  assign payload_index = index_q;
  assign is_inference  = kind_q == 8'd1;
  assign is_right      = crc == RESIDUE;
  assign is_last_check = is_byte && state_q == CHECK && index_q == 16'd3;

  crc32_byte u_crc (
      .crc (crc_q),
      .data(data),
      .next(crc)
  );

  always_ff @(posedge clk) begin
    accept <= is_last_check && is_right;
    refuse <= 1'b0;
    wait_q <= is_byte || state_q <= SECOND ? '0 : wait_q + 1'b1;
    if (is_byte) begin
      crc_q <= crc;
      case (state_q)
        HUNT: if (data == 8'h5a) state_q <= SECOND;
        SECOND: begin
          crc_q <= '1;
          if (data == 8'ha5) state_q <= KIND;
          else if (data != 8'h5a) state_q <= HUNT;
        end
        KIND: begin
          kind_q  <= data;
          state_q <= NUMBER;
        end
        NUMBER: begin
          number  <= data;
          state_q <= LOW;
        end
        LOW: begin
          length_q <= {8'b0, data};
          state_q  <= HIGH;
        end
        HIGH: begin
          length_q <= length;
          index_q  <= '0;
          state_q  <= !is_allowed ? HUNT : length == '0 ? CHECK : PAYLOAD;
          refuse   <= !is_allowed;
          status   <= UNKNOWN;
        end
        PAYLOAD: begin
          index_q <= index_q + 16'd1;
          if (index_q + 16'd1 == length_q) begin
            index_q <= '0;
            state_q <= CHECK;
          end
        end
        CHECK: begin
          index_q <= index_q + 16'd1;
          if (is_last_check) begin
            state_q <= HUNT;
            refuse  <= !is_right;
            status  <= DAMAGED;
          end
        end
      endcase
    end else if (is_late) begin
      state_q <= HUNT;
      refuse  <= 1'b1;
      status  <= CUT_SHORT;
    end
    if (rst || !enable) begin
      state_q <= HUNT;
      accept  <= 1'b0;
      refuse  <= 1'b0;
    end
  end

endmodule

`default_nettype wire
