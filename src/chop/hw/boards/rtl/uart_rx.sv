// UART receiver: 8 data bits, no parity, 1 stop bit, the lowest bit first.
//
// The line is sampled in the middle of each bit. A start bit that is shorter than half a bit is
// ignored, and so is a byte without a stop bit. `data_valid` is high for one cycle per byte.
`default_nettype none

module uart_rx #(
    parameter int CLOCKS = 25  // clock cycles per bit, 4 or more
) (
    input  wire logic       clk,
    input  wire logic       rst,
    input  wire logic       rx,
    output      logic [7:0] data,
    output      logic       data_valid
);

  localparam int COUNT_WIDTH = $clog2(CLOCKS);
  localparam logic [COUNT_WIDTH-1:0] WHOLE = COUNT_WIDTH'(CLOCKS - 1);
  localparam logic [COUNT_WIDTH-1:0] HALF = COUNT_WIDTH'(CLOCKS / 2 - 1);
  localparam logic [3:0] STOP = 4'd9;

  logic [2:0] line_q;  // two registers against metastability, and the bit before
  logic [COUNT_WIDTH-1:0] count_q;
  logic [3:0] bit_q;  // 0: start bit, 1 to 8: data, 9: stop bit
  logic is_busy_q, level, is_sample;

  assign level     = line_q[1];
  assign is_sample = is_busy_q && count_q == '0;

  always_ff @(posedge clk) begin
    line_q     <= {line_q[1:0], rx};
    data_valid <= is_sample && bit_q == STOP && level;
    if (is_sample) begin
      count_q <= WHOLE;
      bit_q   <= bit_q + 4'd1;
      if (bit_q != '0 && bit_q != STOP) data <= {level, data[7:1]};
      if ((bit_q == '0 && level) || bit_q == STOP) is_busy_q <= 1'b0;
    end else if (is_busy_q) begin
      count_q <= count_q - 1'b1;
    end else if (line_q[2] && !level) begin  // a falling edge: a broken line starts nothing
      is_busy_q <= 1'b1;
      bit_q     <= '0;
      count_q   <= HALF;
    end
    if (rst) begin
      line_q     <= '1;
      is_busy_q  <= 1'b0;
      data_valid <= 1'b0;
    end
  end

endmodule

`default_nettype wire
