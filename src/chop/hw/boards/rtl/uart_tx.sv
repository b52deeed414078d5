// UART transmitter: 8 data bits, no parity, 1 stop bit, the lowest bit first.
//
// The line is high between bytes. A byte takes 10 * CLOCKS cycles.
`default_nettype none

module uart_tx #(
    parameter int CLOCKS = 25  // clock cycles per bit, 4 or more
) (
    input  wire logic       clk,
    input  wire logic       rst,
    input  wire logic [7:0] data,
    input  wire logic       data_valid,
    output      logic       data_ready,
    output      logic       tx
);

  localparam int COUNT_WIDTH = $clog2(CLOCKS);
  localparam logic [COUNT_WIDTH-1:0] WHOLE = COUNT_WIDTH'(CLOCKS - 1);

  logic [9:0] bits_q;  // stop bit, data and start bit; the line is the lowest
  logic [3:0] left_q;  // bits to send
  logic [COUNT_WIDTH-1:0] count_q;

  assign tx         = bits_q[0];
  assign data_ready = left_q == '0;

  always_ff @(posedge clk) begin
    if (data_ready) begin
      if (data_valid) begin
        bits_q  <= {1'b1, data, 1'b0};
        left_q  <= 4'd10;
        count_q <= WHOLE;
      end
    end else if (count_q != '0) begin
      count_q <= count_q - 1'b1;
    end else begin
      bits_q  <= {1'b1, bits_q[9:1]};
      left_q  <= left_q - 4'd1;
      count_q <= WHOLE;
    end
    if (rst) begin
      bits_q <= '1;
      left_q <= '0;
    end
  end

endmodule

`default_nettype wire
